--- The metrics of the data plane, in the order of the answer: { name, type, labels, help }.
-- The one list: exposition.lua renders it, and lua.Families of Go reads it for the reference.
return {
    { "headgate_proxy_requests_total", "counter", "host, ingress, service, port, method, status",
        "Requests that were answered, by the route that they matched; its labels are empty where "
        .. "they matched none." },
    { "headgate_proxy_request_duration_seconds", "histogram", "host, ingress, service, port",
        "Time from the first byte of a request to the last byte of its answer, without tunnels "
        .. "(101)." },
    { "headgate_proxy_upstream_duration_seconds", "histogram", "host, ingress, service, port",
        "Time from the connection to the last peer that was tried to the last byte of its answer, "
        .. "without tunnels (101)." },
    { "headgate_proxy_received_bytes_total", "counter", "host, ingress, service, port",
        "Bytes of requests, with their headers." },
    { "headgate_proxy_sent_bytes_total", "counter", "host, ingress, service, port",
        "Bytes of answers, with their headers." },
    { "headgate_proxy_retries_total", "counter", "upstream",
        "Further attempts on another peer after one had failed." },
    { "headgate_proxy_retries_denied_total", "counter", "upstream",
        "Retries that were not made because the retry budget was spent." },
    { "headgate_proxy_ejections_total", "counter", "upstream",
        "Peers that were taken out because they failed again and again." },
    { "headgate_proxy_returns_total", "counter", "upstream",
        "Ejected peers that get requests again." },
    { "headgate_proxy_refusals_total", "counter", "upstream, reason",
        "Requests that got 503 for a limit of their upstream: too many in flight (limit), or no "
        .. "peer became free in time (queue)." },
    { "headgate_proxy_upstream_peers", "gauge", "upstream, state",
        "Peers of the upstreams that were used of late or have something to tell: all, ejected, "
        .. "down by a health check." },
    { "headgate_proxy_upstream_requests", "gauge", "upstream",
        "Requests in flight to the peers of an upstream, where they are counted." },
    { "headgate_proxy_upstream_panic", "gauge", "upstream",
        "1 while so many peers are out that all of them are used." },
    { "headgate_proxy_connections", "gauge", "state", "Connections of clients." },
    { "headgate_proxy_connections_accepted_total", "counter", "",
        "Connections that were accepted since nginx started, those of the daemon among them." },
    { "headgate_proxy_connections_dropped_total", "counter", "",
        "Connections that were closed at once because a worker had no room for them "
        .. "(proxy.workerConnections)." },
    { "headgate_proxy_websockets", "gauge", "",
        "Requests for another protocol (WebSocket) that are open." },
    { "headgate_proxy_workers", "gauge", "",
        "Workers that count, those on their way out among them." },
    { "headgate_proxy_revision", "gauge", "", "Revision of the committed state." },
    { "headgate_proxy_dict_capacity_bytes", "gauge", "dict", "Size of a shared dict." },
    { "headgate_proxy_dict_free_bytes", "gauge", "dict", "Free pages of a shared dict." },
    { "headgate_proxy_metrics_dropped_total", "counter", "",
        "Counts that were lost because the shared dict of the metrics is full." },
}
