--- Writes the metrics in the text exposition format 0.0.4 of Prometheus, piece by piece. Its loops
-- run over some 300,000 lines for 10,000 hosts: what LuaJIT does not compile (string.format, gsub,
-- closures) stays out of them, and lines are put together in one buffer.
local buffer = require "string.buffer"
local ffi = require "ffi"

local families = require "headgate.families"
local metrics = require "headgate.metrics"

local floor, gsub, match, min = math.floor, string.gsub, string.match, math.min
local ipairs, tostring = ipairs, tostring

local _M = {}

-- So many routes, upstreams or ids are one piece: about 1,000 lines at most.
local A_PIECE = 64
local ESCAPES = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }
local BUCKETS = metrics.BUCKETS
-- What follows the labels of a bucket.
local BOUND = {}
for i = 1, BUCKETS do
    BOUND[i] = tostring(metrics.BOUNDS[i] or "+Inf") .. '"} '
end

local function escape(value)
    return (gsub(value, '[\\"\n]', ESCAPES))
end

--- The labels of a route or upstream as they stand between braces.
local function labels_of(label)
    local upstream = metrics.upstream_of(label)
    if upstream then
        return 'upstream="' .. escape(upstream) .. '"', true
    end
    local host, ingress, service, port = match(label, "^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$")
    return 'host="' .. escape(host or "") .. '",ingress="' .. escape(ingress or "")
        .. '",service="' .. escape(service or "") .. '",port="' .. escape(port or "") .. '"', false
end

--- All that have numbers, each with its labels and its numbers as they are now.
local function list(dict, yield)
    local routes, upstreams, all, n = {}, {}, {}, 0
    for id = 1, dict:get("next") or 0 do
        local label = dict:get("label/" .. id)
        if label then
            local text, of_upstream = labels_of(label)
            local to = of_upstream and upstreams or routes
            local item = { id = id, labels = text }
            n = n + 1
            to[#to + 1], all[n] = item, item
        end
        if id % A_PIECE == 0 then
            yield()
        end
    end
    local series = ffi.new("headgate_series[?]", n)
    for i = 1, n do
        local item = all[i]
        item.series = series[i - 1]
        metrics.read(dict, item.id, item.series)
        if i % A_PIECE == 0 then
            yield()
        end
    end
    return routes, upstreams, series
end

-- A writer puts the lines of one item into the buffer.

local function write_requests(buf, _, r, name)
    local series = r.series
    for k = 0, metrics.MAX_CODES do
        local n = series.count[k]
        if n > 0 then
            local status, method = metrics.decode(series, k)
            buf:put(name, "{", r.labels, ',method="', method, '",status="', status, '"} ', n, "\n")
        end
    end
end

local function write_histogram(buf, r, name, first)
    local slot, total = r.series.slot, 0
    for b = 1, BUCKETS do
        total = total + slot[first + b - 1]
    end
    if total == 0 then
        return
    end
    local prefix = name .. "_bucket{" .. r.labels .. ',le="'
    total = 0
    for b = 1, BUCKETS do
        total = total + slot[first + b - 1]
        buf:put(prefix, BOUND[b], total, "\n")
    end
    -- nginx's clock counts milliseconds.
    buf:put(name, "_sum{", r.labels, "} ", floor(slot[first - 1] * 1000 + 0.5) / 1000, "\n")
    buf:put(name, "_count{", r.labels, "} ", total, "\n")
end

local function histogram(first)
    return "routes", function(buf, _, r, name)
        write_histogram(buf, r, name, first)
    end
end

local function counter(of, slot)
    return of, function(buf, _, r, name)
        local n = r.series.slot[slot - 1]
        if n > 0 then
            buf:put(name, "{", r.labels, "} ", n, "\n")
        end
    end
end

local function single(field)
    return "once", function(buf, o, _, name)
        buf:put(name, " ", o[field], "\n")
    end
end

local function of_dicts(method)
    return "dicts", function(buf, _, d, name)
        buf:put(name, '{dict="', d.name, '"} ', d.dict[method](d.dict), "\n")
    end
end

local SLOT = metrics.OF_UPSTREAM

local function write_refusals(buf, _, u, name)
    local limit, queue = u.series.slot[SLOT.broken - 1], u.series.slot[SLOT.overflowed - 1]
    if limit > 0 then
        buf:put(name, "{", u.labels, ',reason="limit"} ', limit, "\n")
    end
    if queue > 0 then
        buf:put(name, "{", u.labels, ',reason="queue"} ', queue, "\n")
    end
end

local function write_peers(buf, _, u, name)
    local id = escape(u.upstream)
    buf:put(name, '{upstream="', id, '",state="all"} ', u.peers, "\n")
    buf:put(name, '{upstream="', id, '",state="ejected"} ', u.ejected, "\n")
    buf:put(name, '{upstream="', id, '",state="down"} ', u.down, "\n")
end

local function write_in_flight(buf, _, u, name)
    if u.inFlight then
        buf:put(name, '{upstream="', escape(u.upstream), '"} ', u.inFlight, "\n")
    end
end

local function write_panic(buf, _, u, name)
    buf:put(name, '{upstream="', escape(u.upstream), '"} ', u.panic and 1 or 0, "\n")
end

local function write_connections(buf, o, state, name)
    local n = o.get("connections_" .. state)
    if n then -- nginx may be built without stub_status
        buf:put(name, '{state="', state, '"} ', n, "\n")
    end
end

local function counted(field)
    return "once", function(buf, o, _, name)
        local n = o.counted[field]
        if n then -- likewise
            buf:put(name, " ", n, "\n")
        end
    end
end

-- By name: the list (a field of o) that a family is written from, and the writer of an item.
local WRITERS = {
    requests_total = { "routes", write_requests },
    request_duration_seconds = { histogram(metrics.DURATION) },
    upstream_duration_seconds = { histogram(metrics.UPSTREAM) },
    received_bytes_total = { counter("routes", metrics.RECEIVED) },
    sent_bytes_total = { counter("routes", metrics.SENT) },
    retries_total = { counter("upstreams", SLOT.retries) },
    retries_denied_total = { counter("upstreams", SLOT.refused) },
    ejections_total = { counter("upstreams", SLOT.ejections) },
    returns_total = { counter("upstreams", SLOT.returns) },
    refusals_total = { "upstreams", write_refusals },
    upstream_peers = { "used", write_peers },
    upstream_requests = { "used", write_in_flight },
    upstream_panic = { "used", write_panic },
    connections = { "states", write_connections },
    connections_accepted_total = { counted("accepted") },
    connections_dropped_total = { counted("dropped") },
    websockets = { single("websockets") },
    workers = { single("workers") },
    revision = { single("revision") },
    dict_capacity_bytes = { of_dicts("capacity") },
    dict_free_bytes = { of_dicts("free_space") },
    metrics_dropped_total = { single("dropped") },
}

--- Write one family. One without a series is not told at all.
local function write_family(o, f, print)
    local name = f[1]
    local from, write = unpack(WRITERS[match(name, "^headgate_proxy_(.*)$")])
    local items, buf = o[from], o.buf
    local headed = false
    for first = 1, #items, A_PIECE do
        for i = first, min(first + A_PIECE - 1, #items) do
            write(buf, o, items[i], name)
        end
        local piece = buf:get()
        if piece ~= "" then
            if not headed then
                headed = true
                piece = "# HELP " .. name .. " " .. f[4] .. "\n# TYPE " .. name .. " " .. f[2]
                    .. "\n" .. piece
            end
            print(piece)
        end
    end
end

--- Write all metrics.
-- @tparam table o dict: of the metrics; dicts: list of {name, dict}; get: reads variables of nginx;
--   counted: accepted and dropped connections, nil where nginx does not know;
--   used: list of descriptions of upstreams (peers.lua); revision; alive: function(pid)
-- @tparam function print takes a piece of text; it may yield
-- @tparam function yield lets others run
function _M.write(o, print, yield)
    -- o.series owns what the items point into.
    o.routes, o.upstreams, o.series = list(o.dict, yield)
    o.workers, o.websockets = metrics.workers(o.dict, o.alive)
    o.dropped = o.dict:get("dropped") or 0
    o.states = { "active", "reading", "writing", "waiting" }
    o.once = { true }
    o.buf = buffer.new()
    for _, f in ipairs(families) do
        write_family(o, f, print)
    end
end

return _M
