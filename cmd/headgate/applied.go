package main

import (
	"context"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/difference"
)

// momentPatience is below the deadline of who asks.
const momentPatience = 8 * time.Second

// applied tells `headgate diff` what there is, and how it came to be.
func (d *daemon) applied(ctx context.Context) (difference.Moment, error) {
	ctx, cancel := context.WithTimeout(ctx, momentPatience)
	defer cancel()
	m, err := d.loop.Moment(ctx)
	if err != nil {
		return difference.Moment{}, err
	}
	f := d.inForce.Load()
	options := f.options
	if options.OwnAddresses, err = assemble.OwnAddresses(); err != nil {
		return difference.Moment{}, err
	}
	options.APIServers = d.source.apiServers()
	answer := difference.Answer{
		Version: version, Revision: m.Applied.Revision, Known: m.Applied.Known,
		Config: m.Applied.Config, LuaBuild: m.Applied.LuaBuild, Schema: m.Applied.Schema,
		StateBytes: m.Applied.StateBytes, MemoryRefused: m.Applied.MemoryRefused,
		Pointers: m.Applied.Pointers, Bodies: m.Applied.Bodies,
		Options: difference.Options{Options: options}, Layout: f.layout,
		Resolutions: m.Resolutions, Verdicts: m.Verdicts, StateDir: d.config.StateDir, LastGood: d.paths.LastGood,
	}
	for _, p := range m.Problems {
		answer.Problems = append(answer.Problems, assemble.Problem(p))
	}
	return difference.Moment{Answer: answer, State: m.State}, nil
}
