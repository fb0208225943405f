package main

import (
	"context"
	"fmt"

	"headgate/bench/cluster"
	"headgate/bench/stage"
)

const (
	// services that the routes share, each with servicePeers endpoints.
	services, servicePeers = 200, 4
	// firstPeer leaves the first addresses to the probed service.
	firstPeer = 2500
)

// The probed service has one endpoint at a time: one of two backends that tell who they are.
const probed = "probed"

// bedOfRoutes is the cluster and how many routes it has so far.
type bedOfRoutes struct {
	*cluster.Cluster
	peerA, peerB string
	routes       int
}

// startCluster starts the API server with what every size has: a class and services.
func startCluster(ctx context.Context, s *stage.Stage, binary string) (*bedOfRoutes, error) {
	c, err := cluster.Start(ctx, s, cluster.Config{Binary: binary})
	if err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	b := &bedOfRoutes{Cluster: c, peerA: cluster.Peer(0), peerB: cluster.Peer(1)}
	err = cluster.Each(ctx, services, func(ctx context.Context, i int) error {
		var peers []string
		for p := range servicePeers {
			peers = append(peers, cluster.Peer(firstPeer+i*servicePeers+p))
		}
		return c.Service(ctx, fmt.Sprintf("s%d", i), peers...)
	})
	if err != nil {
		return nil, fmt.Errorf("make the services: %w", err)
	}
	return b, c.Service(ctx, probed, b.peerA) //nolint:wrapcheck // it says what it made
}

// grow adds Ingresses until the cluster has that many routes. The first one leads to the probed service.
func (c *bedOfRoutes) grow(ctx context.Context, routes int) error {
	from := c.routes / cluster.PathsPerIngress
	more := (routes - c.routes + cluster.PathsPerIngress - 1) / cluster.PathsPerIngress
	c.routes += more * cluster.PathsPerIngress
	return cluster.Each(ctx, more, func(ctx context.Context, i int) error { //nolint:wrapcheck // Create did
		n := from + i
		service := fmt.Sprintf("s%d", n%services)
		if n == 0 {
			service = probed
		}
		return c.Create(ctx, cluster.Ingress(fmt.Sprintf("h%d", n), service, cluster.FivePaths()...))
	})
}
