package.path = "./?.lua;./spec/?.lua;" .. package.path

local fixture = require "fixture"
local request = require "headgate.request"

--- Run the phase with a fake of nginx; gives what happened.
local function run(o)
    local out = { var = o.var }
    local ngx = {
        var = o.var, header = {}, HTTP_OK = 200,
        print = function(body) out.body = body end,
        exit = function(status) out.exited = status end,
        redirect = function(to, status) out.location, out.status = to, status end,
        exec = function(to) out.exec = to end,
        escape_uri = function(s) return s end,
        req = {
            set_uri = function(path) out.uri = path end,
            set_uri_args = function(args) out.args = args end,
            clear_header = function(name) out.cleared = name end,
        },
    }
    o.var.uri = o.var.uri or "/"
    o.var.request_uri = o.var.request_uri or o.var.uri
    o.var.headgate_host = o.var.headgate_host or o.var.http_host
    local handed = fixture.handover()
    if o.before then
        handed.give(o.before)
    end
    request.new({
        ngx = ngx, state = { stamp = function() return 1 end }, report = fixture.report(),
        router = {
            host = function(_, name) out.host = name return o.host, o.broken end,
            match = function() return o.route, o.captures, o.err end,
        },
        upstreams = { get = function() return o.upstream end },
        settings = { get = function() return o.settings end },
        profiles = { known = true }, random = o.random, peers = o.peers,
        get = function(name) return o.var[name] end, handover = handed, logged = o.logged,
        identify = function() out.identified = true end, metrics = o.metrics,
    })(o.scheme or "http")
    out.upstream, out.label = handed.upstream(), handed.label()
    out.status, out.header = out.status or ngx.status, ngx.header
    return out
end

local UP = { count = 1, pool = "07_http", life = {} }
local HOST = { name = "h" }

describe("request", function()
    it("hands upstream, pool and policy over", function()
        local out = run({ var = { host = "h", http_host = "h" }, host = HOST, upstream = UP,
            route = { backend = "u", policy = "1,2,3,4" } })
        assert.equal("u", out.upstream)
        assert.equal("07_http", out.var.hg_pool)
        assert.equal("1,2,3,4", out.var.headgate_policy)
        assert.is_nil(out.status)
        assert.is_nil(out.exec)
    end)

    it("gives it an ID, and tells the access log where there is one", function()
        local o = { var = { host = "h", http_host = "h" }, host = HOST, upstream = UP,
            route = { backend = "u" } }
        local out = run(o)
        assert.is_true(out.identified)
        assert.is_nil(out.var.headgate_upstream)
        o.logged = true
        assert.equal("u", run(o).var.headgate_upstream)
    end)

    it("tells of a request that goes to a peer once, however often it comes by", function()
        local opened = 0
        local o = {
            var = { host = "h", http_host = "h" }, host = HOST, upstream = UP,
            route = { backend = "u", label = "l" },
            metrics = { opened = function() opened = opened + 1 end },
        }
        assert.equal("l", run(o).label)
        assert.equal(1, opened)
        o.before = "u"
        run(o)
        assert.equal(1, opened)
    end)

    it("goes into the profile, if nginx.conf has it", function()
        local o = { var = { host = "h", http_host = "h" }, host = HOST, upstream = UP,
            route = { backend = "u", profile = "known" } }
        assert.equal("@known", run(o).exec)
        o.route.profile = "unknown"
        assert.is_nil(run(o).exec)
    end)

    it("tells the balancer of policies, and the cookie of its path", function()
        local up = { count = 1, pool = "07_http", life = {} }
        local function handed(route)
            route.backend = "u"
            return run({ var = { host = "h", http_host = "h" }, host = HOST, upstream = up,
                route = route }).var
        end
        assert.is_nil(handed({}).headgate_policy)
        assert.is_nil(up.life.policies)
        assert.equal("/x", handed({ policy = "1,2,3,4,0", cookiePath = "/x" }).headgate_cookie_path)
        assert.equal("a.internal", handed({ peerHost = "a.internal" }).headgate_peer_host)
        assert.is_true(up.life.policies)
        assert.equal("0", handed({ noLog = true }).headgate_log)
    end)

    it("chooses the pool by the protocol of the profile", function()
        local function pool(own) return request.pool(UP, own) end
        assert.equal("07_http", pool(nil))
        assert.equal("07_grpc", pool("_grpc"))
        assert.equal("07_grpc", pool("_grpc"))
        assert.equal("headgate_https_0123", pool("headgate_https_0123"))
        local function handed(profile)
            return run({ var = { host = "h", http_host = "h" }, host = HOST, upstream = UP,
                route = { backend = "u", profile = profile, pool = "_grpc" } })
        end
        assert.equal("07_grpc", handed("known").var.hg_pool)
        -- nginx.conf does not have it yet, and no other profile speaks its protocol.
        assert.equal(503, handed("unknown").status)
    end)

    describe("with limits", function()
        local function limited(o)
            local counted = {}
            local up = {
                count = 1, pool = "07_http",
                life = {
                    bounded = not o.free,
                    admission = { enter = function() return not o.full, o.full and 7 end },
                },
            }
            local out = run({
                var = {
                    host = "h", http_host = "h", headgate_peer = o.before and "+a:1",
                },
                before = o.before, host = HOST, upstream = up, route = { backend = "u" },
                peers = {
                    counting = function() return true end,
                    finished = function(_, id, _, get)
                        counted[#counted + 1] = { id, get("headgate_peer") }
                    end,
                },
            })
            out.counted = counted
            return out
        end

        it("marks a request that was let in", function()
            local out = limited({})
            assert.equal("+", out.var.headgate_peer)
            assert.equal("u", out.upstream)
            assert.equal("", limited({ free = true }).var.headgate_peer)
        end)

        it("answers 503 when there is no room", function()
            local out = limited({ full = true })
            assert.equal(503, out.status)
            assert.equal(7, out.header["Retry-After"])
            assert.is_nil(out.upstream)
        end)

        it("ends the first part of a request that a peer sent here again", function()
            local out = limited({ before = "v" })
            assert.same({ { "v", "+a:1" } }, out.counted)
            assert.equal("+", out.var.headgate_peer)
        end)
    end)

    it("answers 404 and 503", function()
        local var = { host = "h", http_host = "h" }
        assert.equal(404, run({ var = var }).status)
        assert.equal(503, run({ var = var, broken = true }).status)
        assert.equal(404, run({ var = var, host = HOST }).status)
        assert.equal(503, run({ var = var, host = HOST, err = "limit" }).status)
        assert.equal(503, run({ var = var, host = HOST, route = { unavailable = true } }).status)
        local route = { backend = "u" }
        assert.equal(503, run({ var = var, host = HOST, route = route }).status)
        assert.equal(503, run({
            var = var, host = HOST, route = route, upstream = { count = 0 },
        }).status)
    end)

    it("answers 413 by Content-Length", function()
        local route = { backend = "u", maxBody = 10 }
        local function status(length)
            return run({
                var = { host = "h", http_host = "h", content_length = length }, host = HOST,
                route = route, upstream = UP,
            }).exited
        end
        assert.is_nil(status("10"))
        assert.is_nil(status(nil))
        assert.equal(413, status("11"))
    end)

    it("asks for no body that nobody reads", function()
        local function cleared(expect)
            return run({ var = { host = "h", http_host = "h", http_expect = expect } }).cleared
        end
        assert.equal("Expect", cleared("100-continue"))
        assert.is_nil(cleared(nil))
    end)

    it("redirects http, not https", function()
        local function to(scheme, var)
            var.host, var.http_host = "h", "h:80"
            return run({
                scheme = scheme, var = var, host = HOST, upstream = UP,
                settings = { noTLSRedirect = { "/open" } },
                route = { backend = "u", redirect = { status = 308 } },
            }).location
        end
        assert.equal("https://h", to("http", {}))
        assert.is_nil(to("https", {}))
        assert.is_nil(to("http", { uri = "/open/x" }))
        assert.is_nil(to("forwarded", { headgate_scheme = "https" }))
        assert.is_nil(to("forwarded", { headgate_scheme = "odd" }))
        local function best(host)
            return to("forwarded", { headgate_scheme = "http", headgate_best_host = host })
        end
        assert.equal("https://first", best("first"))
        assert.equal("https://h", best("a b"))
    end)

    it("refuses a redirect for a host that may not stand in a Location", function()
        local out = run({ var = { host = "a;b", http_host = "a;b" }, host = HOST, upstream = UP,
            route = { backend = "u", redirect = { status = 308 } } })
        assert.equal(400, out.status)
        assert.is_nil(out.location)
        assert.is_nil(out.upstream)
    end)

    it("lets the host of the target win over the header", function()
        local function sent(host, header)
            return run({ var = { host = host, http_host = header }, host = HOST, upstream = UP,
                route = { backend = "u" } }).var.headgate_host
        end
        assert.equal("h", sent("h", "h"))
        assert.equal("H:81", sent("h", "H:81"))
        assert.equal("h.:81", sent("h", "h.:81"))
        assert.equal("h", sent("h", "other"))
        assert.equal("h", sent("h", nil))
        assert.is_nil(sent("", nil))
    end)

    it("rewrites", function()
        local out = run({
            var = { host = "h", http_host = "h", args = "q=1" }, host = HOST, upstream = UP,
            captures = { "x" }, route = { backend = "u", rewrite = { "/new/", 1, "?a=b" } },
        })
        assert.equal("/new/x", out.uri)
        assert.equal("a=b&q=1", out.args)
    end)

    it("shares requests by weight", function()
        local route = { backends = { "a", "b" }, weights = { 1, 3 } }
        local count = { a = 0, b = 0 }
        for i = 0, 99 do
            local name = request.pick_backend(route, function() return i / 100 end)
            count[name] = count[name] + 1
        end
        assert.same({ a = 25, b = 75 }, count)
        local even = { backends = { "a", "b" } }
        assert.equal("b", request.pick_backend(even, function() return 2 end))
    end)
end)
