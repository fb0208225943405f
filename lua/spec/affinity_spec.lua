package.path = "./?.lua;./spec/?.lua;" .. package.path

local affinity = require "headgate.affinity"
local crowd = require "crowd"
local fixture = require "fixture"

local random = crowd.random()

--- A gateway with one upstream, and clients that keep their cookies.
local function gateway(decoded)
    local g = { var = {}, now = 1000, jumped = 0, turn = 0, dict = nil, known = {} }
    local ngx = {
        var = g.var, time = function() return g.now end,
        http_time = function(t) return "<" .. t .. ">" end,
        hmac_sha1 = function(key, text)
            local h = ("%08x"):format(fixture.crc32(key .. text))
            return h .. h .. h:sub(1, 4)
        end,
        encode_base64 = function(s) return s end,
    }
    g.values = {}
    g.dict = {
        get = function(_, key)
            local v = g.values[key]
            if v and v.ends > g.now + g.jumped then -- keys end by the clock of the day
                return v.value, v.flags
            end
        end,
        set = function(_, key, value, ttl, flags)
            g.sets = (g.sets or 0) + 1
            g.values[key] = { value = value, ends = g.now + g.jumped + ttl, flags = flags }
            return true
        end,
    }

    local function list(addresses)
        local out = {}
        for i, a in ipairs(addresses) do
            g.known[a] = g.known[a] or { address = a, weight = 1 }
            out[i] = g.known[a]
        end
        return out
    end

    --- A push of other peers.
    function g.push(ready, draining)
        local life = { ready = list(ready), draining = list(draining or {}) }
        local upstream = { id = "d/a/80", life = life }
        upstream.affinity = affinity.new(decoded, upstream, {
            previous = g.upstream and g.upstream.affinity, ngx = ngx, random = random,
            now = function() return g.now end, crc32 = fixture.crc32, dict = g.dict,
        })
        g.upstream = upstream
    end

    -- The algorithm: round robin over the eligible, draining ones last.
    local function pick(upstream, ctx)
        g.key = ctx.key
        for _, peers in ipairs({ upstream.life.ready, upstream.life.draining }) do
            for _ = 1, #peers do
                g.turn = g.turn + 1
                local p = peers[g.turn % #peers + 1]
                if not p.blocked and not (ctx.tried and ctx.tried[p.address]) then
                    return p
                end
            end
        end
    end

    --- One request; with failed peers it is retried.
    function g.request(client, down)
        g.var.cookie_s, g.var.headgate_cookie = client.cookie, nil
        g.var.binary_remote_addr = client.address
        local ctx = {}
        local peer
        repeat
            peer = g.upstream.affinity:pick(g.upstream, ctx, pick)
            local dead = peer and down and down[peer.address]
            if dead then
                ctx.tried = ctx.tried or {}
                assert.is_nil(ctx.tried[peer.address])
                ctx.tried[peer.address] = true
            end
        until not dead
        client.set = g.var.headgate_cookie
        if client.set then
            client.cookie = client.set:match("^s=([^;]+)")
        end
        client.peer = peer and peer.address
        return client.peer
    end

    return g
end

local function clients(n)
    local out = {}
    for i = 1, n do
        out[i] = { address = string.char(10, 1, math.floor(i / 256), i % 256) }
    end
    return out
end

local function pods(n)
    local out = {}
    for i = 1, n do
        out[i] = "10.0.0." .. i .. ":80"
    end
    return out
end

local function requests(g, all, down)
    local count, moved = {}, 0
    for _, c in ipairs(all) do
        local before = c.peer
        local peer = g.request(c, down)
        count[peer or "none"] = (count[peer or "none"] or 0) + 1
        moved = moved + (before and before ~= peer and 1 or 0)
    end
    return count, moved
end

--- A gateway with so many pods, and so many clients that have a session there.
local function settled(decoded, pod_count, client_count)
    local g, all = gateway(decoded), clients(client_count)
    g.push(pods(pod_count))
    return g, all, (requests(g, all))
end

--- Where the sessions are, in the order of the clients.
local function places(all)
    local out = {}
    for i, c in ipairs(all) do
        out[i] = c.peer
    end
    return out
end

local function assert_nobody_moves(g, all)
    local count, moved = requests(g, all)
    assert.equal(0, moved)
    return count
end

--- A session is given up when its peer failed, and the next one stays.
local function changed_on_failure(cookie)
    cookie.name, cookie.changeOnFailure = "s", true
    local g, all = settled({ cookie = cookie }, 3, 90)
    requests(g, all, { ["10.0.0.2:80"] = true })
    assert.is_nil(assert_nobody_moves(g, all)["10.0.0.2:80"])
    -- Ejected is failed, full is not.
    local peer = g.known["10.0.0.1:80"]
    for _, full in ipairs({ true, false }) do
        peer.blocked, peer.full = true, full
        requests(g, all)
        peer.blocked = false
        assert.equal(full, requests(g, all)["10.0.0.1:80"] ~= nil)
    end
    return g
end

local MODES = {
    balanced = { cookie = { name = "s" } },
    persistent = { cookie = { name = "s", persistent = true, key = "secret" } },
    address = { clientIP = 600 },
}

for name, decoded in pairs(MODES) do
    describe("affinity " .. name, function()
        it("keeps every client with its peer", function()
            local g, all, count = settled(decoded, 5, 500)
            for _, address in ipairs(pods(5)) do
                assert.is_true(count[address] > 60 and count[address] < 140, count[address])
            end
            for _ = 1, 3 do
                assert_nobody_moves(g, all)
                for _, c in ipairs(all) do
                    assert.is_nil(c.set) -- the cookie is set once
                end
            end
        end)

        it("spreads the clients of one that goes, and moves no others", function()
            local g, all = settled(decoded, 5, 500)
            local left, before = {}, places(all)
            g.push(pods(4))
            requests(g, all)
            for i, c in ipairs(all) do
                if before[i] == "10.0.0.5:80" then
                    left[c.peer] = (left[c.peer] or 0) + 1
                else
                    assert.equal(before[i], c.peer)
                end
            end
            for _, address in ipairs(pods(4)) do
                assert.is_true((left[address] or 0) > 5, address)
            end
            assert_nobody_moves(g, all)
        end)

        it("keeps the sessions of draining peers, and brings them no new one", function()
            local g, all = settled(decoded, 4, 300)
            g.push({ "10.0.0.1:80", "10.0.0.2:80" }, { "10.0.0.3:80", "10.0.0.4:80" })
            assert_nobody_moves(g, all)
            local fresh = clients(700)
            for i = 301, 700 do
                g.request(fresh[i])
                assert.is_true(fresh[i].peer == "10.0.0.1:80" or fresh[i].peer == "10.0.0.2:80")
            end
            -- When all are draining, they serve.
            g.push({}, pods(4))
            local last = {}
            for i = 1, 50 do
                last[i] = { address = string.char(10, 9, 0, i) }
                assert.is_string(g.request(last[i]))
            end
            assert_nobody_moves(g, last)
        end)

        it("lends the clients of one that is out to others, and none to draining ones", function()
            local g = gateway(decoded)
            g.push({ "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80" }, { "10.0.0.4:80" })
            local all = clients(300)
            requests(g, all)
            local before = places(all)
            g.known["10.0.0.1:80"].blocked = true
            local count, moved = requests(g, all)
            assert.is_nil(count["10.0.0.1:80"])
            assert.is_nil(count["10.0.0.4:80"])
            assert.is_true(moved > 50)
            g.known["10.0.0.1:80"].blocked = false
            requests(g, all)
            assert.same(before, places(all))
        end)

        it("retries elsewhere and comes back", function()
            local g, all = settled(decoded, 3, 90)
            local before = places(all)
            local count = requests(g, all, { ["10.0.0.2:80"] = true })
            assert.is_nil(count["10.0.0.2:80"])
            requests(g, all)
            assert.same(before, places(all))
        end)

        it("gives nobody where there is nobody", function()
            local g = gateway(decoded)
            g.push(pods(2))
            g.known["10.0.0.1:80"].blocked, g.known["10.0.0.2:80"].blocked = true, true
            assert.is_nil(g.request({ address = "\1\1\1\1" }))
        end)

        it("survives random edits: nobody moves whose peer is there", function()
            local g = gateway(decoded)
            local all, before = clients(60), {}
            for _ = 1, 60 do
                local ready, draining, here = {}, {}, {}
                for i = 1, 8 do
                    local kind = random(4)
                    if kind <= 2 or i == 1 then
                        ready[#ready + 1] = "10.0.0." .. i .. ":80"
                        here[ready[#ready]] = "ready"
                    elseif kind == 3 then
                        draining[#draining + 1] = "10.0.0." .. i .. ":80"
                        here[draining[#draining]] = "draining"
                    end
                end
                g.push(ready, draining)
                for i, c in ipairs(all) do
                    g.request(c)
                    assert.is_string(here[c.peer])
                    if name ~= "balanced" and here[before[i]] then
                        assert.equal(before[i], c.peer)
                    end
                    before[i] = c.peer
                end
            end
        end)
    end)
end

describe("affinity balanced", function()
    it("gives a new peer its share of the sessions, and takes no other one", function()
        local g, all = settled(MODES.balanced, 4, 1000)
        g.push(pods(5))
        local count, moved = requests(g, all)
        assert.equal(count["10.0.0.5:80"], moved)
        assert.is_true(moved > 130 and moved < 270, moved)
    end)

    it("begins another session when its peer failed, if it should", function()
        changed_on_failure({})
    end)

    it("takes the keys of ingress-nginx, and harmless ones of anybody", function()
        local g = gateway(MODES.balanced)
        g.push(pods(3))
        local c = { cookie = "1700000000.123.456.789|5f4dcc3b5aa765d61d8327deb882cf99" }
        local first = g.request(c)
        assert.is_nil(c.set)
        assert.equal(first, g.request(c))
        for _ = 1, 500 do
            local bytes = {}
            for i = 1, random(200) do
                bytes[i] = string.char(random(256) - 1)
            end
            c.cookie = table.concat(bytes)
            local sent = c.cookie
            assert.is_string(g.request(c))
            if c.set then
                assert.is_nil(c.set:find(sent, 1, true))
                assert.is_truthy(c.set:match("^s=%x+; Path=/; HttpOnly$"))
            end
        end
    end)
end)

describe("affinity persistent", function()
    it("leaves sessions where they are when peers come", function()
        local g, all = settled(MODES.persistent, 2, 100)
        g.push(pods(5))
        local count = assert_nobody_moves(g, all)
        assert.same({ ["10.0.0.1:80"] = 50, ["10.0.0.2:80"] = 50 }, count)
        local fresh = requests(g, clients(100))
        assert.equal(20, fresh["10.0.0.5:80"])
    end)

    it("tells nothing of addresses without the key", function()
        local g, other = gateway(MODES.persistent), gateway({
            cookie = { name = "s", persistent = true, key = "another" },
        })
        g.push(pods(1))
        other.push(pods(1))
        local a, b = {}, {}
        g.request(a)
        other.request(b)
        assert.are_not.equal(a.cookie, b.cookie)
        assert.is_nil(a.cookie:find("10.0.0", 1, true))
    end)

    it("begins a session for a value that names nobody", function()
        local g = gateway(MODES.persistent)
        g.push(pods(3))
        for _, value in ipairs({ "x", ("y"):rep(128), "\0", "10.0.0.1:80" }) do
            local c = { cookie = value }
            assert.is_string(g.request(c))
            assert.is_truthy(c.set)
            assert.are_not.equal(value, c.cookie)
        end
    end)

    it("binds to the peer that answered when its own failed, if it should", function()
        local g = changed_on_failure({ persistent = true })
        local c = {}
        g.request(c, { ["10.0.0.1:80"] = true, ["10.0.0.2:80"] = true })
        assert.equal("10.0.0.3:80", g.request(c)) -- a new session, whose first peers failed
    end)
end)

describe("affinity by address", function()
    it("ends when the client was idle for the time, and not before", function()
        local g, all = settled(MODES.address, 2, 60)
        g.push(pods(6))
        for _ = 1, 10 do
            g.now = g.now + 599
            assert.is_nil(assert_nobody_moves(g, all)["10.0.0.6:80"])
        end
        -- The last request need not have been written down.
        g.now = g.now + 30
        requests(g, all)
        g.now = g.now + 599
        assert_nobody_moves(g, all)
        g.now = g.now + 600 + 38
        assert.is_truthy(requests(g, all)["10.0.0.6:80"])
    end)

    for _, jump in ipairs({ -7 * 86400, -3600, 3600, 80000 }) do
        it("ends no other way when the clock of the day jumps by " .. jump, function()
            local g, all = settled(MODES.address, 2, 60)
            g.push(pods(6))
            g.jumped = jump
            g.now = g.now + 599
            assert.is_nil(assert_nobody_moves(g, all)["10.0.0.6:80"])
            g.jumped = 2 * jump
            g.now = g.now + 600 + 38
            assert.is_truthy(requests(g, all)["10.0.0.6:80"])
        end)
    end

    it("writes seldom", function()
        local g = gateway({ clientIP = 600 })
        g.push(pods(2))
        local c = { address = "\1\2\3\4" }
        for _ = 1, 300 do
            g.now = g.now + 1
            g.request(c)
        end
        assert.is_true(g.sets <= 10, g.sets)
    end)

    it("knows IPv6, and IPv4 in its clothes", function()
        local g = gateway({ clientIP = 600 })
        g.push(pods(5))
        local seen = {}
        for i = 1, 200 do
            local c = { address = ("\32\1\13\184"):rep(3) .. string.char(0, 0, 0, i) }
            assert.equal(g.request(c), g.request(c))
            seen[c.peer] = true
        end
        for _, address in ipairs(pods(5)) do
            assert.is_true(seen[address])
        end
        local plain = { address = string.char(10, 1, 2, 3) }
        local dressed = { address = ("\0"):rep(10) .. "\255\255" .. plain.address }
        g.request(plain)
        local sets = g.sets
        assert.equal(plain.peer, g.request(dressed))
        assert.equal(sets, g.sets)
    end)

    it("finds most clients again when it has forgotten them", function()
        local g, all = settled(MODES.address, 5, 200)
        g.values = {} -- evicted, or another proxy
        assert_nobody_moves(g, all)
    end)
end)

describe("affinity by hash", function()
    it("gives the key to the algorithm", function()
        local g = gateway({ hash = { { "argument", "q" } } })
        g.push(pods(3))
        g.var.arg_q = "x"
        g.request({})
        assert.equal("x", g.key)
        g.var.arg_q = nil
        g.request({})
        assert.is_nil(g.key)
    end)

    it("gives it for new sessions, too", function()
        local g = gateway({
            hash = { { "argument", "q" } }, cookie = { name = "s", persistent = true },
        })
        g.push(pods(3))
        g.var.arg_q = "x"
        g.request({})
        assert.equal("x", g.key)
    end)
end)

describe("affinity", function()
    it("may change its kind by a push", function()
        for _, from in pairs(MODES) do
            for _, to in pairs(MODES) do
                local decoded = {}
                for k, v in pairs(from) do decoded[k] = v end
                local g = gateway(decoded)
                g.push(pods(3))
                requests(g, clients(10))
                for k in pairs(from) do decoded[k] = nil end
                for k, v in pairs(to) do decoded[k] = v end
                g.push(pods(4))
                requests(g, clients(10))
            end
        end
    end)
end)
