package reconcile

import (
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/sync/nginxproc"
)

// LastApplied renders the configuration that was applied last, anew for this binary and host: with it a proxy
// serves the state in the log before any daemon runs. It uses Layout, Settings, Listeners and MemoryFile of cfg. Where
// nothing was applied yet, ok is false, and the configuration is one that nobody reaches but through its control
// socket.
func LastApplied(cfg Config) (c nginxproc.Conf, ok bool, err error) {
	l := &Loop{cfg: cfg, rejected: map[string]bool{}}
	if l.memory, err = readMemory(cfg.MemoryFile); err != nil {
		return nginxproc.Conf{}, false, err
	}
	m := &model.Model{Settings: cfg.Settings, Listeners: cfg.Listeners}
	ok = l.memory.Generation != ""
	l.cfg.Layout.Private = !ok
	if ok {
		m.Settings.DefaultProfile = l.memory.Default
	}
	var config nginxconf.Config
	config, err = l.render(m, max(m.Settings.StateMemoryBytes, l.memory.StateBytes), l.keptProfiles())
	return confOf(config), ok, err
}
