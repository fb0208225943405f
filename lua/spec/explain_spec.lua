package.path = "./?.lua;./spec/?.lua;" .. package.path

local explain = require "headgate.explain"
local router = require "headgate.router"

local function watch(host, upstreams)
    local told = {}
    local real = router.new({
        hosts = { get = function(_, name)
            if name == "broken" then
                return nil, true
            end
            return name == host.name and host or nil
        end, held = function() end },
        re_find = function(path, pattern) return path:find(pattern) end,
    })
    local watched = explain.watch({
        router = real,
        upstreams = { get = function(_, id) return upstreams[id] end },
        tell = function(seen) told[#told + 1] = seen end, revision = function() return 7 end,
    })
    return watched, function() return told[#told] end
end

local HOST = router.build_whole_host({
    name = "h", exact = { ["/e"] = 1 }, prefix = { [""] = 2 }, lengths = { 0 },
    routes = {
        { backends = { "u" }, source = { "Ingress", "n", "i", "s", "80" }, redirect = {},
            maxBody = 5, policy = "1,2,3,4", profile = "p" },
        { unavailable = true, source = { "Ingress", "n", "j", "", "" } },
    },
})

describe("explain", function()
    it("passes calls on and notes what came of them", function()
        local watched, last = watch(HOST, { u = { count = 2, kind = "round_robin" } })
        assert.equal(HOST, watched.router:host("h", 7))
        assert.same({ revision = 7, name = "h", host = "h" }, last())
        assert.equal(HOST.routes[1], watched.router:match(HOST, "/e"))
        assert.same({
            type = "exact", path = "/e", number = 1, source = { "Ingress", "n", "i", "s", "80" },
            maxBody = 5, policy = "1,2,3,4", profile = "p", redirects = true, rewrites = false,
            backends = { "u" },
        }, last().route)
        assert.equal("/e", last().path)
        assert.equal(2, watched.upstreams:get("u", 7).count)
        assert.same({ id = "u", count = 2, known = true, algorithm = "round_robin" },
            last().upstream)
        assert.is_nil(watched.upstreams:get("gone", 7))
        assert.same({ id = "gone", count = 0, known = false }, last().upstream)
    end)

    it("starts anew with each request", function()
        local watched, last = watch(HOST, {})
        watched.router:host("h", 1)
        watched.router:match(HOST, "/other")
        assert.equal("prefix", last().route.type)
        assert.is_true(last().route.unavailable)
        local host, broken = watched.router:host("broken", 2)
        assert.is_nil(host)
        assert.is_true(broken)
        assert.same({ revision = 7, name = "broken", broken = true }, last())
        assert.is_nil(watched.router:host("nobody", 2))
        assert.same({ revision = 7, name = "nobody" }, last())
    end)

    it("notes regular expressions", function()
        local host = router.build_host({
            name = "r", regex = { { "^/a", 1 } },
            routes = { { backends = { "u" }, source = {} } },
        })
        local watched, last = watch(host, {})
        watched.router:host("r", 1)
        assert.equal(host[1], watched.router:match(host, "/a"))
        assert.equal("regex", last().route.type)
        assert.equal("^/a", last().route.path)
        assert.is_nil(watched.router:match(host, "/b"))
        assert.is_nil(last().route)
    end)

    it("tells why a regular expression could not be run", function()
        local told
        local watched = explain.watch({
            router = {
                host = function() return HOST end,
                match = function() return nil, nil, "match limit" end,
            },
            upstreams = {}, tell = function(seen) told = seen end,
            revision = function() return 1 end,
        })
        watched.router:host("h", 1)
        local _, _, err = watched.router:match(HOST, "/x")
        assert.equal("match limit", err)
        assert.equal("match limit", told.error)
    end)

    it("takes addresses from the PROXY protocol", function()
        local function run(scheme, address)
            local var = {
                proxy_protocol_server_addr = address, headgate_trusted = "0",
                headgate_explain_trusted = "1",
            }
            local given
            local phase = explain.phase({ var = var, route = function(s) given = s end })
            phase(scheme)
            assert.equal(scheme, given)
            return var
        end
        assert.equal("10.0.0.1", run("http", "10.0.0.1").headgate_server_addr)
        assert.equal("[::1]", run("http", "::1").headgate_server_addr)
        assert.equal("", run("http", nil).headgate_server_addr)
        assert.equal("0", run("https", "::1").headgate_trusted)
        assert.equal("1", run("forwarded", "::1").headgate_trusted)
    end)

    it("echoes the request", function()
        local sent
        local ngx = { var = { request = "GET / HTTP/1.1", http_host = "h" }, header = {} }
        ngx.exit = function(status) ngx.left = status end
        explain.echo({ ngx = ngx, encode = function(v) sent = v return "json" end })()
        assert.same({ request = "GET / HTTP/1.1", host = "h" }, sent)
        assert.equal("json", ngx.header["X-Headgate-Sent"])
        assert.equal(200, ngx.left)
    end)
end)
