package.path = "./?.lua;./spec/?.lua;" .. package.path

local router = require "headgate.router"

--- A collection of hosts by name; counts lookups. As the real one it holds what was looked up.
local function collection(hosts)
    local c = { lookups = 0, entries = {} }
    function c:get(name, revision)
        self.lookups = self.lookups + 1
        self.entries[name] = { value = hosts[name] or nil, revision = revision }
        return hosts[name], hosts[name] == false or nil
    end
    function c:held(name, revision)
        local entry = self.entries[name]
        return entry and entry.revision == revision and entry.value or nil
    end
    return c
end

local function remembered(r)
    local n = 0
    for _, names in ipairs({ r.young, r.old }) do
        for _ in pairs(names) do
            n = n + 1
        end
    end
    return n
end

local function host(paths)
    local routes = {}
    local decoded = { exact = paths.exact, prefix = paths.prefix, regex = paths.regex }
    for i = 1, paths.n do
        routes[i] = { id = i, backends = { "u" .. i } }
    end
    decoded.routes = routes
    if paths.prefix then
        local seen = {}
        decoded.lengths = {}
        for p in pairs(paths.prefix) do
            if not seen[#p] then
                seen[#p] = true
                table.insert(decoded.lengths, #p)
            end
        end
        table.sort(decoded.lengths, function(a, b) return a > b end)
    end
    return router.build_whole_host(decoded)
end

describe("router", function()
    it("prefers the exact host, then the wildcard, then any host", function()
        local exact, wild, any = { name = "exact" }, { name = "wild" }, { name = "any" }
        local r = router.new({
            hosts = collection({ ["a.x"] = exact, ["*.x"] = wild, [""] = any }),
        })
        assert.equal(exact, r:host("a.x", 1))
        assert.equal(wild, r:host("b.x", 1))
        assert.equal(any, r:host("a.b.x", 1))
        assert.equal(any, r:host("x", 1))
        assert.equal(any, r:host("", 1))
        assert.equal(any, r:host("*.x", 1))
        assert.equal(any, r:host(".x", 1))
        assert.equal(any, r:host(("a"):rep(254), 1))
    end)

    it("does not fall back from a host that is broken", function()
        local r = router.new({ hosts = collection({ ["a.x"] = false, ["*.x"] = {}, [""] = {} }) })
        local found, broken = r:host("a.x", 1)
        assert.is_falsy(found)
        assert.is_true(broken)
    end)

    it("remembers names for one revision, and a bounded number of them", function()
        local hosts = collection({ [""] = { name = "any" } })
        local r = router.new({ hosts = hosts })
        r:host("a", 1)
        local lookups = hosts.lookups
        r:host("a", 1)
        assert.equal(lookups, hosts.lookups)
        r:host("a", 2)
        assert.is_true(hosts.lookups > lookups)
        for i = 1, 20000 do
            r:host("n" .. i, 2)
        end
        assert.is_true(remembered(r) <= 2 * 4096)
    end)

    it("looks each host of many up once a revision, and remembers none of their names", function()
        local all = {}
        for i = 1, 10000 do
            all["h" .. i] = { name = "h" .. i }
        end
        local hosts = collection(all)
        local r = router.new({ hosts = hosts })
        for _ = 1, 3 do
            for i = 1, 10000 do
                assert.equal(all["h" .. i], (r:host("h" .. i, 1)))
            end
        end
        assert.equal(10000, hosts.lookups)
        assert.equal(0, remembered(r))
        r:host("h1", 2)
        assert.equal(10001, hosts.lookups)
    end)

    it("takes no name of a client for the wildcard that is held", function()
        local hosts = collection({ ["*.x"] = { name = "*.x" }, [""] = { name = "" } })
        local r = router.new({ hosts = hosts })
        assert.equal("*.x", r:host("a.x", 1).name)
        assert.equal("", r:host("*.x", 1).name)
    end)

    it("matches exact before the longest prefix, by element", function()
        local h = host({ n = 5, exact = { ["/foo"] = 1, ["/bar/"] = 5 },
            prefix = { ["/foo"] = 2, ["/foo/bar"] = 3, [""] = 4 } })
        local r = router.new({ hosts = collection({}) })
        local cases = {
            ["/foo"] = 1, ["/foo/"] = 2, ["/foo/bar"] = 3, ["/foo/bar/x"] = 3, ["/foo/barx"] = 2,
            ["/foox"] = 4, ["/"] = 4, ["/bar/"] = 5, ["/bar"] = 4, ["/bar/x"] = 4,
        }
        for path, id in pairs(cases) do
            assert.equal(id, r:match(h, path).id, path)
        end
    end)

    it("finds nothing where nothing matches", function()
        local r = router.new({ hosts = collection({}) })
        assert.is_nil(r:match(host({ n = 1, prefix = { ["/a"] = 1 } }), "/b"))
        assert.is_nil(r:match(host({ n = 0 }), "/"))
    end)

    it("takes the first regex that matches, and stops where one cannot be run", function()
        local r = router.new({
            hosts = collection({}),
            re_find = function(path, pattern)
                if pattern == "error" then
                    return nil, nil, "match limit"
                end
                return path:find(pattern)
            end,
        })
        local h = host({ n = 3, regex = { { "^/aa", 1 }, { "^/a", 2 }, { "^/", 3 } } })
        assert.equal(1, r:match(h, "/aa").id)
        assert.equal(2, r:match(h, "/ab").id)
        assert.equal(3, r:match(h, "/x").id)
        local route, _, err = r:match(host({ n = 2, regex = { { "error", 1 }, { "^/", 2 } } }), "/")
        assert.is_nil(route)
        assert.equal("match limit", err)
    end)

    it("keeps equal routes once, and nothing that requests do not read", function()
        local source = { "Ingress", "n", "i", "s", "80" }
        local function route(o)
            o.backends, o.source = o.backends or { "u" }, o.source or source
            return o
        end
        local h = router.build_host({
            name = "h", lengths = { 3, 2, 0 },
            prefix = { [""] = 1, ["/b"] = 2, ["/cc"] = 3 }, exact = { ["/d"] = 4, ["/e"] = 5 },
            regex = { { "^x", 6 }, { "^y", 7 } },
            routes = {
                route({}), route({}), route({ policy = "1,2,3,4,0" }),
                route({ backends = { "v" } }),
                route({ source = { "Ingress", "n", "other", "s", "80" } }),
                route({ redirect = { status = 308 } }), route({ backends = { "u", "v" } }),
            },
        })
        local function at(path)
            local function re_find(text, pattern) return text:find(pattern) end
            return (router.new({ re_find = re_find, re_match = re_find }):match(h, path))
        end
        assert.equal(6, #h)
        assert.equal(at("/"), at("/b"))
        assert.same({ label = "h\nn/i\ns\n80", backend = "u" }, at("/"))
        assert.equal("1,2,3,4,0", at("/cc").policy)
        assert.equal("v", at("/d").backend)
        assert.equal("h\nn/other\ns\n80", at("/e").label)
        assert.same({ status = 308 }, at("x").redirect)
        assert.same({ "u", "v" }, at("y").backends)
        assert.is_nil(at("/e").backends)
        assert.is_nil(at("y").backend)
    end)

    it("shares equal paths among hosts, and no others", function()
        local function build(o)
            local backends = o.backends or { "u" }
            return router.build_host({
                name = o.name, exact = o.exact, prefix = o.prefix, lengths = { 2, 0 },
                regex = o.regex,
                routes = {
                    { backends = backends, source = { "", "", o.name } },
                    { backends = o.second or backends, source = { "", "", o.name } },
                },
            })
        end
        local function paths() return { [""] = 1, ["/a"] = 2 } end
        local r = router.new({})
        local a = build({ name = "a", prefix = paths(), second = { "x" } })
        local b = build({ name = "b", prefix = paths(), second = { "y" } })
        assert.equal(a.paths, b.paths)
        assert.equal("x", r:match(a, "/a/b").backend)
        assert.equal("y", r:match(b, "/a/b").backend)
        assert.equal("b\n/b\n\n", r:match(b, "/").label)
        local others = {
            { name = "c", prefix = paths() }, -- both paths lead to one route
            { name = "c", prefix = { [""] = 2, ["/a"] = 1 }, second = { "x" } },
            { name = "c", exact = paths(), second = { "x" } },
            { name = "c", prefix = { [""] = 1 }, exact = { ["/a"] = 2 }, second = { "x" } },
            { name = "c", prefix = paths(), second = { "x" }, regex = { { "^/", 1 } } },
            -- Whose paths read as those of another one.
            { name = "c", prefix = { [""] = 1, ["/a"] = 2, ["P2:2:/a"] = 1 }, second = { "x" } },
            { name = "c", prefix = { ["P2:2:/a"] = 1 }, second = { "x" } },
        }
        for i, o in ipairs(others) do
            assert.is_not.equal(a.paths, build(o).paths, i)
        end
    end)

    it("refuses a host whose table names a route that is missing", function()
        assert.has_error(function() router.build_host({ routes = {}, exact = { ["/"] = 1 } }) end)
    end)
end)
