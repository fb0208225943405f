package.path = "./?.lua;./spec/?.lua;" .. package.path

local balancer = require "headgate.balancer"
local fixture = require "fixture"
local peers_fixture = require "peers_fixture"
local router = require "headgate.router"
local state = require "headgate.state"

-- What a large site takes of each worker (docs/performance.md): a table of LuaJIT is 64 bytes, 24
-- for each field in powers of two, and 8 for each element. The bounds leave room for one field more
-- here and there, not for a table.
describe("memory", function()
    local N = 2000
    local PATHS = { "", "/api", "/api/v2", "/login", "/static" }
    local bodies, hosts, upstreams, view, own_peers

    local function put(pointer, body)
        local n = (bodies.n or 0) + 1
        bodies.n = n
        bodies[pointer] = fixture.hash(n)
        bodies["body/" .. fixture.hash(n)] = body
    end

    local function route(i)
        return {
            backends = { "shop/s" .. i .. "/80" },
            source = { "Ingress", "shop", "h" .. i, "s" .. i, "80" },
        }
    end

    local function host(i, paths)
        local prefix, lengths, routes = {}, {}, {}
        for n, path in ipairs(paths) do
            prefix[path], lengths[n], routes[n] = n, #path, route(i)
        end
        table.sort(lengths, function(a, b) return a > b end)
        return { name = "h" .. i .. ".test", prefix = prefix, lengths = lengths, routes = routes }
    end

    local function upstream(i, n)
        local list = {}
        for k = 1, n do
            list[k] = ("10.%d.%d.%d:8080"):format(100 + k, math.floor(i / 250), i % 250 + 1)
        end
        return { peers = list }
    end

    before_each(function()
        bodies = {}
        local proxy = peers_fixture.proxy()
        own_peers = peers_fixture.worker(proxy)
        view = state.new({
            dict = { get = function(_, key) return bodies[key] end }, meta = fixture.dict(),
            cells = fixture.cells(), decode = fixture.decode, report = fixture.report(),
            yield = function() end,
        })
        hosts = view:kind("host", router.build_host)
        upstreams = view:kind("upstream", balancer.builder({
            crc32 = function() return 1 end, random = math.random, now = proxy.clock.now,
            peers = own_peers, ngx = {}, dict = {},
        }))
    end)

    --- Bytes that each of N calls leaves behind, beside what was pushed.
    local function each(make)
        collectgarbage()
        collectgarbage()
        local before = collectgarbage("count")
        for i = 1, N do
            make(i)
        end
        collectgarbage()
        collectgarbage()
        return (collectgarbage("count") - before) * 1024 / N
    end

    local function bytes_of_hosts(paths_of)
        for i = 1, N do
            put("host/h" .. i .. ".test", fixture.encode(host(i, paths_of(i))))
        end
        return each(function(i)
            assert(hosts:get("h" .. i .. ".test", 1))
        end)
    end

    it("is little for a host whose paths others have, too", function()
        local bytes = bytes_of_hosts(function() return PATHS end)
        assert.is_true(bytes < 700, bytes .. " bytes a host")
    end)

    it("is bounded for a host that has paths of its own", function()
        local bytes = bytes_of_hosts(function(i)
            return { "", "/a" .. i, "/b" .. i, "/c" .. i, "/d" .. i }
        end)
        assert.is_true(bytes < 1500, bytes .. " bytes a host")
    end)

    local function bytes_of_upstreams(count)
        for i = 1, N do
            put("upstream/shop/s" .. i .. "/80", fixture.encode(upstream(i, count)))
        end
        return each(function(i)
            local one = assert(upstreams:get("shop/s" .. i .. "/80", 1))
            one.life:look()
            assert(one.life:began())
            assert(balancer.pick(one, {}))
            own_peers:finished("shop/s" .. i .. "/80", 200, function() end)
        end)
    end

    it("is little for an upstream that serves, and for each of its peers", function()
        local two = bytes_of_upstreams(2)
        assert.is_true(two < 1300, two .. " bytes an upstream of two peers")
    end)

    it("is little for a peer", function()
        local ten = bytes_of_upstreams(10)
        assert.is_true(ten < 1300 + 8 * 200, ten .. " bytes an upstream of ten peers")
    end)
end)
