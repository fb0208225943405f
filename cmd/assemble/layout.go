package assemble

import (
	"headgate/cmd/config"
	"headgate/cmd/defaultcert"
	"headgate/gateway/nginxconf"
)

// Machine is what was found on this host.
type Machine struct {
	NginxVersion      string
	Modules           []string
	LuaPath, LuaCPath string
	LuaDir, LuaBuild  string // of the Lua files that were written
	Worker            Account
	OpenFiles         int
	Certificate       defaultcert.Files
}

// Layout is what nginx.conf is told about this host.
func Layout(c config.Config, p Paths, m Machine) nginxconf.Layout {
	format := nginxconf.AccessLogCombined
	if c.AccessLog.Format == config.JSONLines {
		format = nginxconf.AccessLogJSON
	}
	pid := p.PID
	if c.Proxy.Mode == config.External {
		// It stands on nginx's command line: the daemon, another user, may not write that file, and nginx -t would.
		pid = ""
	}
	return nginxconf.Layout{
		Daemon:       c.Proxy.Mode == config.External, // nginx heeds USR2 and WINCH then
		NginxVersion: m.NginxVersion, Modules: m.Modules,
		User: m.Worker.User, Group: m.Worker.Group,
		OpenFiles: m.OpenFiles,
		PIDFile:   pid, TempDir: p.Temp, ControlSocket: p.ControlSocket,
		ErrorLog: p.ErrorLog, StateLog: p.StateLog, TLSDir: p.TLS,
		AccessLog: c.AccessLog.Path, AccessLogFormat: format,
		LuaDir: m.LuaDir, LuaBuild: m.LuaBuild, LuaPath: m.LuaPath, LuaCPath: m.LuaCPath,
		DefaultCertificate: m.Certificate.Certificate, DefaultKey: m.Certificate.Key,
	}
}
