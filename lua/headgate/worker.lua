--- Ties the modules to nginx: made once for each load of the configuration, in the master, and
-- inherited by its workers. The one place that knows ngx and the names of the shared dicts.
local cjson = require "cjson.safe"
local lrucache = require "resty.lrucache"
local ngx_balancer = require "ngx.balancer"
local process = require "ngx.process"
local ssl = require "ngx.ssl"

local balancer = require "headgate.balancer"
local certificate = require "headgate.certificate"
local config = require "headgate.config"
local control = require "headgate.control"
local era = require "headgate.era"
local explain = require "headgate.explain"
local report = require "headgate.report"
local request = require "headgate.request"
local router = require "headgate.router"
local siblings = require "headgate.siblings"
local state = require "headgate.state"

local ngx = ngx
local dict, meta = ngx.shared.headgate_state, ngx.shared.headgate_meta

-- A parsed certificate takes about 10 KiB.
local CERTIFICATES = 4096

local own_report = report.new({ meta = meta, now = ngx.now, encode = cjson.encode })
local view = state.new({
    dict = dict, meta = meta, decode = cjson.decode, report = own_report,
    yield = function() ngx.sleep(0) end,
})
local settings = view:kind("setting", function(decoded) return decoded end)
local upstreams = view:kind("upstream", balancer.builder({
    crc32 = ngx.crc32_short, random = math.random,
}))
local hosts = view:kind("host", router.build_host)

local function nginx_version()
    local n = ngx.config.nginx_version
    return string.format("%d.%d.%d", n / 1000000, n / 1000 % 1000, n % 1000)
end

local _M = { report = own_report, state = view }

local own_router = router.new({ hosts = hosts, re_find = ngx.re.find, re_match = ngx.re.match })

--- Make a request phase over a router and upstreams: those of clients, or those that explain
-- watches.
local function new_route(found_by, picked_from)
    return request.new({
        ngx = ngx, state = view, settings = settings, report = own_report,
        profiles = config.profiles, random = math.random,
        router = found_by, upstreams = picked_from,
    })
end

_M.route = new_route(own_router, upstreams)

local watched = explain.watch({
    router = own_router, upstreams = upstreams,
    tell = function(seen) ngx.var.headgate_explain = cjson.encode(seen) end,
})
_M.explain = explain.phase({
    var = ngx.var, route = new_route(watched.router, watched.upstreams),
})
_M.explained = explain.echo({ ngx = ngx, encode = cjson.encode })

_M.balance = balancer.new({ ngx = ngx, api = ngx_balancer, state = view, upstreams = upstreams })

_M.choose_certificate = certificate.new({
    ssl = ssl, state = view, settings = settings, report = own_report,
    sni = view:kind("sni", certificate.build_sni),
    certificates = view:kind("cert", certificate.build_certificate),
    cache = assert(lrucache.new(CERTIFICATES)),
    log = function(...) ngx.log(ngx.ERR, ...) end,
})

_M.control = control.new({
    ngx = ngx, dict = dict, meta = meta, config = config, encode = cjson.encode,
    decode = cjson.decode, state = view, upstreams = upstreams,
    master_pid = process.get_master_pid, nginx_version = nginx_version(),
    retired = function() return ngx.worker.exiting() or era.over(meta, config.load) end,
    siblings = function() return siblings.new(io.open) end,
})

--- Start what each worker does beside requests.
function _M.start()
    own_report.pid, own_report.generation = ngx.worker.pid(), config.generation
    math.randomseed(ngx.now() * 1000 + ngx.worker.pid())
    era.claim(meta, config.load)
    view:revision()
    own_report:write()
    return ngx.timer.every(1, function(premature)
        if not premature then
            era.claim(meta, config.load)
            view:sweep()
        end
        own_report:write()
    end)
end

return _M
