package config

// Key describes one key of the configuration for people: the reference page, hints, --set and the flags.
type Key struct {
	Name    string // "proxy.mode"
	Values  string // what may be written
	Doc     string // one or two sentences
	Example string // a line of YAML; "" repeats the default
}

// Keys lists every key in the order of the reference page. A test holds it equal to the fields of Config.
func Keys() []Key {
	return []Key{
		{"kubeconfig", "path of a file", "Credentials of the cluster to read. The folder is watched: a renewed file is used without a restart. Either this or manifests is needed.", "/etc/headgate/kubeconfig"},
		{"manifests", "list of folders", "Folders of Kubernetes objects in YAML or JSON, watched. A relative path starts at the working directory.", "[/etc/headgate/manifests]"},
		{"namespaces", "list of namespaces", "With kubeconfig: only objects of these namespaces are read; empty means all.", "[shop, blog]"},
		{"ingressClass", "name", "Value of the annotation kubernetes.io/ingress.class that selects an Ingress without spec.ingressClassName.", ""},
		{"controllerNames", "list of domain/path", "An Ingress is ours when its IngressClass has one of these in spec.controller.", ""},
		{"takeOverIngressNginx", "true or false", "Also serve what ingress-nginx serves: controller k8s.io/ingress-nginx and the class annotation \"nginx\".", ""},
		{"watchIngressWithoutClass", "true or false", "Also serve an Ingress that names no class at all.", ""},
		{"annotationsPrefix", "DNS name", "Prefix of the annotations that are read.", ""},
		{"listeners.http", "list of address:port", "Where the proxy accepts http. 0.0.0.0 is all of IPv4, [::] all of IPv6.", ""},
		{"listeners.https", "list of address:port", "Where the proxy accepts https.", ""},
		{"listeners.http2", "true or false", "Offer HTTP/2 on the https listeners.", ""},
		{"proxy.mode", "external, managed", "external: systemd runs the proxy (headgate-proxy.service). managed: the daemon starts and supervises it, for development and tests.", ""},
		{"proxy.stopWithDaemon", "true or false", "managed only: stop the proxy when the daemon stops. Otherwise it goes on serving and the next daemon adopts it.", ""},
		{"proxy.binary", "absolute path", "The nginx or OpenResty to run; empty: detected.", "/usr/sbin/nginx"},
		{"proxy.modules", "list of absolute paths", "Dynamic modules to load, ndk before lua; empty: detected.", "[/usr/lib/nginx/modules/ndk_http_module.so, /usr/lib/nginx/modules/ngx_http_lua_module.so]"},
		{"proxy.luaPath", "Lua search path", "lua_package_path with lua-resty-core and lua-resty-lrucache; empty: detected.", "/usr/share/lua/5.1/?.lua"},
		{"proxy.luaCPath", "Lua search path", "lua_package_cpath with cjson; empty: detected.", "/usr/lib/x86_64-linux-gnu/lua/5.1/?.so"},
		{"proxy.user", "user name", "User of the proxy's workers when the master runs as root; empty: the distribution's.", "www-data"},
		{"proxy.workerProcesses", "0–1024", "Number of nginx workers; 0 is one for each core.", ""},
		{"proxy.workerConnections", "64–1048576", "Connections of one worker, to clients and to upstreams together.", ""},
		{"proxy.stateMemory", "1MiB–16GiB", "Shared memory for the pushed state (routes, endpoints, certificates). 10,000 hosts with 50,000 routes take about 10MiB. It grows by itself when the state needs more, and shrinks back to this when the proxy is started anew.", ""},
		{"trustedProxies", "list of CIDRs", "Networks whose X-Forwarded-* headers are believed, once useForwardedHeaders is on. Empty trusts nobody.", "[10.0.0.0/8]"},
		{"useForwardedHeaders", "true or false", "Believe X-Forwarded-* of trustedProxies.", ""},
		{"sslRedirect", "true or false", "Redirect http to https (308) for hosts with TLS. An annotation can change it for an Ingress.", ""},
		{"noTLSRedirectLocations", "list of path prefixes", "Paths that are never redirected to https.", ""},
		{"hsts.enabled", "true or false", "Send Strict-Transport-Security on https answers of hosts with TLS.", ""},
		{"hsts.maxAge", "0s–315360000s, whole seconds", "max-age of the header.", ""},
		{"hsts.includeSubdomains", "true or false", "Add includeSubDomains to the header.", ""},
		{"hsts.preload", "true or false", "Add preload to the header.", ""},
		{"defaultCertificate", "namespace/name", "TLS Secret for names that have no certificate of their own; empty: a self-signed one, generated once and kept in stateDir.", "headgate-system/default-tls"},
		{"maxBodySize", "0–1024GiB", "Largest request body (413 above it); 0 is no limit. An annotation can change it for an Ingress.", ""},
		{"publish.addresses", "list of IP addresses or DNS names", "Written to status.loadBalancer of every Ingress that is served.", "[192.0.2.10, edge.example.com]"},
		{"publish.clearOnStop", "true or false", "Take the addresses out of the status when the daemon stops. Off: a restart must not flap DNS.", ""},
		{"publish.httpsPort", "1–65535", "Port in redirects to https; 443 is left out of the Location.", ""},
		{"upstreams.allowLoopback", "true or false", "Allow upstream addresses in 127.0.0.0/8 and ::1. Only for development.", ""},
		{"upstreams.allow", "list of CIDRs", "Upstream addresses allowed although a built-in rule or upstreams.deny refuses them.", "[169.254.10.0/24]"},
		{"upstreams.deny", "list of CIDRs", "Upstream addresses refused besides loopback, link-local, multicast, the host's own and the API server's.", "[10.96.0.0/12]"},
		{"status.enabled", "true or false", "Write status and Events to the cluster. One host of those that share the lease does.", ""},
		{"status.leaseNamespace", "namespace", "Namespace of the Lease that elects the writer.", ""},
		{"status.leaseName", "name", "Name of that Lease.", ""},
		{"dns.servers", "list of address or address:port", "Servers that resolve ExternalName services; empty: those of /etc/resolv.conf.", "[10.0.0.53]"},
		{"metrics.listen", "loopback address:port", "Prometheus metrics, read-only, under /metrics; \"\" turns them off.", ""},
		{"stateDir", "absolute path", "What must survive a reboot: the state log, the default certificate, first-seen times.", ""},
		{"runtimeDir", "absolute path, at most 80 bytes", "Sockets, nginx.conf, pid and temporary files.", ""},
		{"log.level", "debug, info, warn, error", "Least severe level that is written.", ""},
		{"log.format", "text, json, journal", "How lines look; journal writes fields to systemd's journal.", ""},
		{"reconcile.window", "1ms–1s", "Changes within this time after the first are one pass.", ""},
		{"reconcile.maxDelay", "window–10s", "A change waits no longer than this while further ones arrive.", ""},
	}
}
