--- Ties the modules to nginx: made once for each load of the configuration, in the master, and
-- inherited by its workers. The one place that knows ngx and the names of the shared dicts. Its
-- functions are the phases: nginx.conf calls them by the global that load.lua sets.
local cjson = require "cjson.safe"
local ffi = require "ffi"
local ngx_balancer = require "ngx.balancer"
local process = require "ngx.process"
local semaphore = require "ngx.semaphore"
local ssl = require "ngx.ssl"
local base = require "resty.core.base"

local balancer = require "headgate.balancer"
local cells = require "headgate.cells"
local certificate = require "headgate.certificate"
local config = require "headgate.config"
local control = require "headgate.control"
local era = require "headgate.era"
local explain = require "headgate.explain"
local former = require "headgate.former"
local framing = require "headgate.framing"
local handover = require "headgate.handover"
local heap = require "headgate.heap"
local metrics = require "headgate.metrics"
local peers = require "headgate.peers"
local random = require "headgate.random"
local recent = require "headgate.recent"
local report = require "headgate.report"
local request = require "headgate.request"
local request_id = require "headgate.request_id"
local router = require "headgate.router"
local siblings = require "headgate.siblings"
local state = require "headgate.state"
local variable = require "headgate.variable"

local ngx = ngx
local dict, meta = ngx.shared.headgate_state, ngx.shared.headgate_meta
local shared_peers = ngx.shared.headgate_peers

pcall(ffi.cdef, "extern volatile uintptr_t ngx_current_msec;")

--- Seconds of the clock that nginx's timers run by: it never jumps, and all workers have the same.
local function steady()
    return tonumber(ffi.C.ngx_current_msec) / 1000
end

pcall(ffi.cdef, "extern volatile uintptr_t *ngx_stat_accepted, *ngx_stat_handled;")

local function count_connections()
    local handled = tonumber(ffi.C.ngx_stat_handled[0]) -- first: it never exceeds the other
    local accepted = tonumber(ffi.C.ngx_stat_accepted[0])
    return { accepted = accepted, dropped = accepted - handled }
end

--- The connections that were accepted since nginx started, and those of them that were dropped at
-- once, because a worker had no room for them.
-- @treturn table accepted, dropped; empty where nginx is built without stub_status
local function connections()
    local ok, counts = pcall(count_connections)
    return ok and counts or {}
end

--- Let others run. nginx without OpenResty's patches warns of a sleep of 0 each time.
local function pause()
    ngx.sleep(0.001)
end

-- A parsed certificate takes about 10 KiB of each worker, of which there may be 64. One that is not
-- held makes a handshake 2.6 times as dear, and only one that resumes no session.
local CERTIFICATES = 1024

--- Free a parsed certificate. OpenSSL counts for itself who uses it.
local function free_certificate(parsed)
    local chain, key = parsed.chain, parsed.key
    parsed.chain, parsed.key = nil, nil
    if chain then
        ffi.C.ngx_http_lua_ffi_free_cert(ffi.gc(chain, nil))
        ffi.C.ngx_http_lua_ffi_free_priv_key(ffi.gc(key, nil))
    end
end

local own_report = report.new({
    meta = meta, now = steady, encode = cjson.encode,
    leaving = function() return ngx.worker.exiting() end,
})
local own_cells = assert(cells.open({
    dict = shared_peers, home = meta, now = steady, random = math.random,
}))
local view = state.new({
    dict = dict, meta = meta, cells = own_cells, decode = cjson.decode, report = own_report,
    yield = pause,
})
local settings = view:kind("setting", function(decoded) return decoded end)
local own_peers = peers.new({
    dict = shared_peers, cells = own_cells, now = steady, random = math.random,
    semaphore = semaphore, log = function(...) ngx.log(ngx.NOTICE, ...) end,
})
local upstreams = view:kind("upstream", balancer.builder({
    crc32 = ngx.crc32_short, random = math.random, now = steady, peers = own_peers, ngx = ngx,
    dict = ngx.shared.headgate_clients,
}))

--- Is a later load of the configuration in force?
local function retired()
    return ngx.worker.exiting() or era.over(meta, config.load)
end

local hosts = view:kind("host", former.keeping(router.build_host, retired))

local function nginx_version()
    local n = ngx.config.nginx_version
    return string.format("%d.%d.%d", n / 1000000, n / 1000 % 1000, n % 1000)
end

local _M = { report = own_report, state = view }

local function new_router(found_in)
    return router.new({ hosts = found_in, re_find = ngx.re.find, re_match = ngx.re.match })
end

local own_router = new_router(hosts)

local variables = variable.open({
    var = ngx.var, get_request = base.get_request, nginx = ffi.C,
})
local get = variables.get
local handed = handover.new({ get_request = base.get_request })
local own_ids = request_id.new({ get_request = base.get_request, nginx = ffi.C })

--- The status of the answer, as ngx.status gives it, read as variable.lua reads.
local function status_now()
    local status = ffi.C.ngx_http_lua_ffi_get_resp_status(base.get_request())
    return status
end

--- Seconds since the request at hand began, by the clock of the day. From the functions behind
-- ngx.now and ngx.req.start_time, which end in calls of a built-in (see variable.lua).
local function request_age()
    local seconds = ffi.C.ngx_http_lua_ffi_now()
        - ffi.C.ngx_http_lua_ffi_req_start_time(base.get_request())
    return seconds
end

--- Is what a series of the metrics tells of still pushed?
local function has_route(label)
    local id = metrics.upstream_of(label)
    if id then
        return dict:get("upstream/" .. id) ~= nil
    end
    local host = hosts:get(metrics.host_of(label), view:stamp())
    return host ~= nil and metrics.has_label(host, label)
end

local own_metrics = metrics.new({
    dict = ngx.shared.headgate_metrics, get = get, now = ngx.now,
    numbers = variables, handover = handed,
    age = request_age, peers = own_peers, exists = has_route,
    yield = pause,
})

--- Make a request phase over a router and upstreams: those of clients, or those that explain
-- watches.
local function new_route(found_by, picked_from, told_to, counted_by, told_by)
    return request.new({
        ngx = ngx, state = view, settings = settings, report = own_report,
        profiles = config.profiles, random = math.random,
        router = found_by, upstreams = picked_from, peers = counted_by,
        metrics = told_by, get = get, handover = told_to, identify = own_ids.set,
        logged = config.access_log,
    })
end

--- server_rewrite_by_lua: function(scheme).
_M.route = new_route(
    own_router, upstreams, handed, own_peers, config.metrics and own_metrics or nil)

local watched = explain.watch({
    router = new_router(view:kind("host", router.build_whole_host)), upstreams = upstreams,
    tell = function(seen) ngx.var.headgate_explain = cjson.encode(seen) end,
    revision = function() return view:committed() end,
})
--- server_rewrite_by_lua of the sockets of `headgate explain`: function(scheme).
_M.explain = explain.phase({
    var = ngx.var,
    -- What is explained has no log phase, which would forget what was handed over.
    route = new_route(watched.router, watched.upstreams, handover.new({
        get_request = base.get_request,
    })),
})
--- content_by_lua of the peer that explained requests are sent to.
_M.explained = explain.echo({ ngx = ngx, encode = cjson.encode })

--- balancer_by_lua.
_M.balance = balancer.new({
    ngx = ngx, api = ngx_balancer, get = get, handover = handed, state = view,
    upstreams = upstreams,
})

--- log_by_lua: the end of each request.
function _M.log()
    local id, status = handed.upstream(), status_now()
    if id then
        own_peers:finished(id, status, get)
    end
    if config.metrics then
        own_metrics:count(status)
    end
    handed.forget()
end

--- header_filter_by_lua, where it is asked for.
_M.check_answer = framing.new({
    ngx = ngx, status = status_now, get = get, handover = handed,
})

local certificates = view:kind("cert", certificate.build_certificate)

--- ssl_certificate_by_lua.
_M.choose_certificate = certificate.new({
    ssl = ssl, state = view, settings = settings, report = own_report,
    sni = view:kind("sni", certificate.build_sni),
    certificates = certificates,
    cache = recent.new(CERTIFICATES, function(parsed, id)
        free_certificate(parsed)
        if id then
            certificates:forget(id)
        end
    end),
    log = function(...) ngx.log(ngx.ERR, ...) end,
})

--- content_by_lua of the control socket.
_M.control = control.new({
    ngx = ngx, dict = dict, meta = meta, config = config, encode = cjson.encode,
    decode = cjson.decode, now = steady, state = view, upstreams = upstreams, peers = own_peers,
    master_pid = process.get_master_pid, nginx_version = nginx_version(),
    retired = retired,
    siblings = function() return siblings.new(io.open) end,
    exposition = {
        dict = ngx.shared.headgate_metrics, get = get, connections = connections,
        dicts = {
            { name = "state", dict = dict }, { name = "meta", dict = meta },
            { name = "peers", dict = shared_peers },
            { name = "metrics", dict = ngx.shared.headgate_metrics },
            { name = "clients", dict = ngx.shared.headgate_clients },
        },
    },
})

local own_heap = heap.new({
    collect = collectgarbage, built = function() return view:decoded() end,
})

--- Is an upstream still pushed? One that is not is forgotten: its life goes, and where it came back
-- as it was, it would be taken for the one that had it.
local function pushed(id)
    if dict:get("upstream/" .. id) then
        return true
    end
    upstreams:forget(id)
    return false
end

--- What is due each second beside requests.
local function tick()
    own_heap:tick()
    era.claim(meta, config.load)
    own_peers:sweep(view:sweep() and pushed or nil, view.yield)
    local now, reaped = steady(), shared_peers:get("reaped")
    -- No key that ends by itself: it would do so by the clock of the day. That two workers do it at
    -- once does no harm.
    if (not reaped or now - reaped >= 1) and shared_peers:safe_set("reaped", now) then
        own_cells:reap(own_report.pid, siblings.new(io.open))
    end
end

--- init_worker_by_lua: start what each worker does beside requests.
function _M.start()
    own_report.pid, own_report.generation = ngx.worker.pid(), config.generation
    own_metrics.pid = own_report.pid
    math.randomseed(ngx.now() * 1000 + ngx.worker.pid())
    own_ids.seed(random.bytes(16))
    era.claim(meta, config.load)
    if not own_cells:claim(own_report.pid, siblings.new(io.open)) then
        ngx.log(ngx.WARN, "there are too many workers: this one counts its requests for itself")
    end
    own_heap:start()
    view:refresh()
    own_report:write()
    local ok, err = ngx.timer.every(1, function(premature)
        if not premature then
            tick()
        end
        own_report:write()
        own_metrics:tick(premature)
    end)
    if not ok then
        ngx.log(ngx.ERR, "the timer of the worker: ", err)
    end
end

return _M
