package config

// Key describes one key of the configuration for people: the reference page, hints, --set and the flags.
type Key struct {
	Name    string // "proxy.mode"
	Values  string // what may be written
	Doc     string // one or two sentences
	Example string // a line of YAML; "" repeats the default
	// Change is how a change of the value comes into force.
	Change Change
}

// Change is how a changed value comes into force.
type Change string

// The ways. ByReload: `headgate reload` brings it into the running daemon; the others need a restart, of the daemon or of
// the VIP process. Neither costs a request.
const (
	ByReload     Change = "reload"
	ByRestart    Change = "restart"
	ByVIPRestart Change = "restart of headgate-vip"
)

// Keys lists every key in the order of the reference page. A test holds it equal to the fields of Config.
func Keys() []Key {
	return []Key{
		{"kubeconfig", "path of a file", "Credentials of the cluster to read. The folder is watched: a renewed file is used without a restart. Either this or manifests is needed.", "/etc/headgate/kubeconfig", ByRestart},
		{"manifests", "list of folders", "Folders of Kubernetes objects in YAML or JSON, watched. A relative path starts at the working directory.", "[/etc/headgate/manifests]", ByRestart},
		{"namespaces", "list of namespaces", "With kubeconfig: only objects of these namespaces are read; empty means all.", "[shop, blog]", ByRestart},
		{"ingressClass", "name", "Value of the annotation kubernetes.io/ingress.class that selects an Ingress without spec.ingressClassName.", "", ByReload},
		{"controllerNames", "list of domain/path", "An Ingress is ours when its IngressClass has one of these in spec.controller.", "", ByReload},
		{"takeOverIngressNginx", "true or false", "Also serve what ingress-nginx serves: controller k8s.io/ingress-nginx and the class annotation \"nginx\".", "", ByReload},
		{"watchIngressWithoutClass", "true or false", "Also serve an Ingress that names no class at all.", "", ByReload},
		{"annotationsPrefix", "DNS name", "Prefix of the annotations that are read.", "", ByReload},
		{"listeners.http", "list of address:port", "Where the proxy accepts http. 0.0.0.0 is all of IPv4, [::] all of IPv6.", "", ByReload},
		{"listeners.https", "list of address:port", "Where the proxy accepts https.", "", ByReload},
		{"listeners.http2", "true or false", "Offer HTTP/2 on the https listeners.", "", ByReload},
		{"proxy.mode", "external, managed", "external: systemd runs the proxy (headgate-proxy.service). managed: the daemon starts and supervises it, for development and tests.", "", ByRestart},
		{"proxy.stopWithDaemon", "true or false", "managed only: stop the proxy when the daemon stops. Otherwise it goes on serving and the next daemon adopts it.", "", ByRestart},
		{"proxy.binary", "absolute path", "The nginx or OpenResty to run; empty: detected.", "/usr/sbin/nginx", ByRestart},
		{"proxy.modules", "list of absolute paths", "Dynamic modules to load, ndk before lua; empty: detected.", "[/usr/lib/nginx/modules/ndk_http_module.so, /usr/lib/nginx/modules/ngx_http_lua_module.so]", ByRestart},
		{"proxy.luaPath", "Lua search path", "lua_package_path with lua-resty-core and lua-resty-lrucache; empty: detected.", "/usr/share/lua/5.1/?.lua", ByRestart},
		{"proxy.luaCPath", "Lua search path", "lua_package_cpath with cjson; empty: detected.", "/usr/lib/x86_64-linux-gnu/lua/5.1/?.so", ByRestart},
		{"proxy.user", "user name", "User of the proxy's workers when the master runs as root; empty: the distribution's.", "www-data", ByRestart},
		{"proxy.workerProcesses", "0–1024", "Number of nginx workers; 0 is one for each core.", "", ByReload},
		{"proxy.workerConnections", "64–1048576", "Connections of one worker, to clients and to upstreams together.", "", ByReload},
		{"proxy.stateMemory", "1MiB–16GiB", "Shared memory for the pushed state (routes, endpoints, certificates). 10,000 hosts with 50,000 routes take about 10MiB. It grows by itself when the state needs more, and shrinks back to this when the proxy is started anew.", "", ByReload},
		{"trustedProxies", "list of CIDRs", "Networks whose X-Forwarded-* headers are believed, once useForwardedHeaders is on. Empty trusts nobody.", "[10.0.0.0/8]", ByReload},
		{"useForwardedHeaders", "true or false", "Believe X-Forwarded-* of trustedProxies.", "", ByReload},
		{"sslRedirect", "true or false", "Redirect http to https (308) for hosts with TLS. An annotation can change it for an Ingress.", "", ByReload},
		{"noTLSRedirectLocations", "list of path prefixes", "Paths that are never redirected to https.", "", ByReload},
		{"hsts.enabled", "true or false", "Send Strict-Transport-Security on https answers of hosts with TLS.", "", ByReload},
		{"hsts.maxAge", "0s–315360000s, whole seconds", "max-age of the header.", "", ByReload},
		{"hsts.includeSubdomains", "true or false", "Add includeSubDomains to the header.", "", ByReload},
		{"hsts.preload", "true or false", "Add preload to the header.", "", ByReload},
		{"defaultCertificate", "namespace/name", "TLS Secret for names that have no certificate of their own; empty: a self-signed one, generated once and kept in stateDir.", "headgate-system/default-tls", ByRestart},
		{"maxBodySize", "0–1024GiB", "Largest request body (413 above it); 0 is no limit. An annotation can change it for an Ingress.", "", ByReload},
		{"publish.addresses", "list of IP addresses or DNS names", "Written to status.loadBalancer of every Ingress that is served.", "[192.0.2.10, edge.example.com]", ByReload},
		{"publish.clearOnStop", "true or false", "Take the addresses out of the status when the daemon stops. Off: a restart must not flap DNS.", "", ByReload},
		{"publish.httpsPort", "1–65535", "Port in redirects to https; 443 is left out of the Location.", "", ByReload},
		{"upstreams.allowLoopback", "true or false", "Allow upstream addresses in 127.0.0.0/8 and ::1. Only for development.", "", ByReload},
		{"upstreams.allow", "list of CIDRs", "Upstream addresses allowed although a built-in rule or upstreams.deny refuses them.", "[169.254.10.0/24]", ByReload},
		{"upstreams.deny", "list of CIDRs", "Upstream addresses refused besides loopback, link-local, multicast, the host's own and the API server's.", "[10.96.0.0/12]", ByReload},
		{"upstreams.loadBalance", "round_robin, least_conn, p2c, ewma, random", "How a peer is picked. Annotations of Services and Ingresses (load-balance) go before it.", "", ByReload},
		{"upstreams.serviceUpstream", "true or false", "Send requests to the addresses of Services instead of their endpoints (service-upstream).", "", ByReload},
		{"upstreams.connectTimeout", "1ms–1h", "How long a connection to a peer may take to be made (proxy-connect-timeout).", "", ByReload},
		{"upstreams.sendTimeout", "1ms–576h", "How long a peer may take nothing of a request (proxy-send-timeout).", "", ByReload},
		{"upstreams.readTimeout", "1ms–576h", "How long a peer may say nothing (proxy-read-timeout).", "", ByReload},
		{"upstreams.strictAnswers", "true or false", "Refuse answers that nginx passes on without framing: statuses below 200 that nobody asked for get 502, and after what is no HTTP the connection is closed. Turn it on when a proxy or CDN in front shares HTTP/1.1 connections among tenants who do not trust each other. It costs about 2 % of CPU.", "", ByReload},
		{"upstreams.nextUpstream", "conditions of proxy_next_upstream", "When a request is sent to another peer (proxy-next-upstream); off never does.", "error timeout http_502", ByReload},
		{"upstreams.nextUpstreamTries", "0–100", "How many peers a request is sent to at most; 0 is as many as there are (proxy-next-upstream-tries).", "", ByReload},
		{"upstreams.nextUpstreamTimeout", "0s–1h", "How long after its start a request may still be sent to another peer; 0s is no bound (proxy-next-upstream-timeout).", "", ByReload},
		{"upstreams.retryBudget", "1%–100%, or off", "How many retries there may be for each hundred requests of an upstream; a few a second are always allowed. A Service can say otherwise (headgate.io/retry-budget).", "", ByReload},
		{"upstreams.eject", "true or false", "Passive health: a peer that fails again and again gets no requests for a while. A Service can say otherwise (headgate.io/eject), as for the next three.", "", ByReload},
		{"upstreams.ejectFailures", "1–1000", "How many failures in a row eject a peer.", "", ByReload},
		{"upstreams.ejectTime", "100ms–1h", "How long a peer is out the first time; each further time is twice as long.", "", ByReload},
		{"upstreams.ejectMaxTime", "ejectTime–24h", "How long a peer is out at most.", "", ByReload},
		{"status.enabled", "true or false", "Write status and Events to the cluster. One host of those that share the lease does.", "", ByRestart},
		{"status.leaseNamespace", "namespace", "Namespace of the Lease that elects the writer.", "", ByRestart},
		{"status.leaseName", "name", "Name of that Lease.", "", ByRestart},
		{"dns.servers", "list of address or address:port", "Servers that resolve ExternalName services; empty: those of /etc/resolv.conf.", "[10.0.0.53]", ByRestart},
		{"healthChecks.concurrency", "1–65536", "Active health checks at the same time. With all of them waiting for time-outs, further checks are late (headgate_health_late_seconds).", "", ByRestart},
		{"lossGuard.share", "1–100", "Percent of its routes, endpoints, services or secrets that the source must lose, while its connection is troubled, for the loss not to be believed: the old ones are served, and headgate status says so.", "", ByReload},
		{"lossGuard.minimum", "1–1000000", "A loss of fewer is always believed.", "", ByReload},
		{"lossGuard.window", "100ms–10m", "The time within which that much is lost.", "", ByReload},
		{"lossGuard.hold", "1s–10m", "For how long the old ones are served at most. Less than that when they come back, when a complete reading of the source confirms the loss, or with headgate accept. Addresses of pods are given to other pods: there is no more than 10m.", "", ByReload},
		{"lossGuard.maxAge", "0s, or 1m–8760h", "How old the last good reading of the source may be. What is older is served on, and headgate status says that it is too old. 0s: any age.", "", ByReload},
		{"metrics.listen", "loopback address:port", "Prometheus metrics, read-only, under /metrics; \"\" turns them off.", "", ByRestart},
		{"metrics.requests", "true or false", "Count requests by host, Ingress, service, method and status, with their times (headgate_proxy_…). It costs the proxy about 4 % of CPU per request; nothing is counted while metrics.listen is empty.", "", ByReload},
		{"accessLog.path", "absolute path", "File of the access log, in a folder that exists; empty: none is written. Queries, cookies and credentials are never in it. The proxy opens it anew on SIGUSR1.", "/var/log/headgate/access.log", ByReload},
		{"accessLog.format", "combined, json", "combined: as ingress-nginx writes it by default, without queries. json: one object a line.", "", ByReload},
		{"gossip.cluster", "name", "Name of the cluster of hosts that share VIPs; the same on all of them. Hosts of another cluster are refused.", "", ByVIPRestart},
		{"gossip.host", "name", "Name of this host, unique in the cluster; empty: the host name, up to its first dot.", "edge1", ByVIPRestart},
		{"gossip.listen", "address:port", "Where this host gossips, TCP and UDP. With 0.0.0.0 or [::] the address that leads to the first peer is told to the others.", "10.0.0.11:7946", ByVIPRestart},
		{"gossip.peers", "list of address or DNS name, with or without :port", "The other hosts; this one may be among them, so that all hosts have the same list. Empty: this host is alone.", "[10.0.0.11, 10.0.0.12]", ByVIPRestart},
		{"gossip.keyFile", "absolute path", "File of the secret that all hosts share, mode 0600 or 0640 ('headgate gossip genkey' writes one). It encrypts gossip and authenticates heartbeats; needed with gossip.peers.", "", ByVIPRestart},
		{"gossip.mtu", "1280–9216", "Smallest MTU on the way between the hosts, in bytes; lower it behind overlays.", "", ByVIPRestart},
		{"vip.interface", "interface", "Interface that the VIPs are on.", "eth0", ByVIPRestart},
		{"vip.addresses", "list of address or address/prefix", "VIPs; each has an owner of its own, and among hosts of the same priority they spread. Without a prefix the address adds no route. Addresses that shall move together are a group.", "[192.0.2.10, \"2001:db8::10\"]", ByVIPRestart},
		{"vip.groups", "list of {name, addresses, interface, priority, nopreempt, preemptDelay}", "VIPs of several addresses that move together, or that differ from the others. What a group leaves out is as in vip. A group has the same name on all hosts.", "[{name: web, addresses: [192.0.2.11, \"2001:db8::11\"], priority: 150}]", ByVIPRestart},
		{"vip.priority", "1–254", "The ready host with the highest priority owns a VIP.", "", ByVIPRestart},
		{"vip.nopreempt", "true or false", "Leave a VIP where it is when a host with a higher priority comes back.", "", ByVIPRestart},
		{"vip.preemptDelay", "0s–1h", "How long a better host must be ready until it gets the VIP back. The move itself refuses no connection.", "", ByVIPRestart},
		{"vip.listen", "address:port", "Where heartbeats of the other hosts arrive, TCP and UDP. 0.0.0.0 and [::]: on the address that gossip tells.", "", ByVIPRestart},
		{"vip.heartbeat", "0s, or 10ms–10s", "Time between two heartbeats. 0s: 50ms under a real-time scheduler, else 100ms.", "", ByVIPRestart},
		{"vip.misses", "2–100", "After how many heartbeats without a sound a host counts as silent.", "", ByVIPRestart},
		{"vip.linkHeartbeat", "true or false", "Send heartbeats as Ethernet broadcasts on the VIPs' interfaces, too (EtherType 0x88B5): firewalls and a lost IP address do not stop them.", "", ByVIPRestart},
		{"vip.realtime", "true or false", "Run the VIP process under SCHED_RR, so that a busy host is not taken for a dead one. It goes without, and says so, where that is not permitted.", "", ByVIPRestart},
		{"vip.proxyTimeout", "20ms–10s", "After how long without an answer the proxy counts as hung, and its VIPs move. While its workers get no CPU ten times as long.", "", ByVIPRestart},
		{"vip.keepFlows", "0s–24h", "For how long connections that were open at a planned move go on through the old owner, where the kernel can do that; 0s: they are cut.", "", ByVIPRestart},
		{"vip.notify", "list: program and arguments", "Run at each change of state, without a shell, with four more arguments as keepalived gives them: INSTANCE, the VIP's name, MASTER, BACKUP, FAULT or STOP, and the priority.", "[/usr/local/bin/vip-changed]", ByVIPRestart},
		{"vip.metricsListen", "loopback address:port", "Prometheus metrics of the VIP process, under /metrics; \"\" turns them off.", "", ByVIPRestart},
		{"stateDir", "absolute path", "What must survive a reboot: the state log, the default certificate, first-seen times.", "", ByRestart},
		{"runtimeDir", "absolute path, at most 80 bytes", "Sockets, nginx.conf, pid and temporary files.", "", ByRestart},
		{"log.level", "debug, info, warn, error", "Least severe level that is written.", "", ByReload},
		{"log.format", "text, json, journal", "How lines look; journal writes fields to systemd's journal.", "", ByRestart},
		{"reconcile.window", "1ms–1s", "Changes within this time after the first are one pass.", "", ByReload},
		{"reconcile.maxDelay", "window–10s", "A change waits no longer than this while further ones arrive.", "", ByReload},
	}
}
