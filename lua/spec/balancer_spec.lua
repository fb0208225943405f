package.path = "./?.lua;./spec/?.lua;" .. package.path

local balancer = require "headgate.balancer"
local fixture = require "fixture"
local peers_fixture = require "peers_fixture"

local BUSY = -3

describe("balancer", function()
    local proxy, peers, build

    before_each(function()
        proxy = peers_fixture.proxy()
        peers = peers_fixture.worker(proxy)
        build = balancer.builder({
            crc32 = function(s) return #s end, random = function() return 1 end,
            now = proxy.clock.now, peers = peers, ngx = { var = {} },
        })
    end)

    local function pick(upstream, tried)
        local peer = balancer.pick(upstream, { tried = tried })
        return peer and peer.address
    end

    --- Run the phase once; gives the peer that was set and the calls that were made.
    local function run(upstream, o)
        local calls = {}
        local api = {
            get_last_failure = function() return o.failed, o.status or 502 end,
            set_current_peer = function(p)
                calls.peer = p
                return not o.refused, "refused"
            end,
            set_more_tries = function(n) calls.more = n return true end,
            set_timeouts = function(...) calls.timeouts = { ... } return true end,
        }
        calls.var = {
            headgate_policy = o.policy or "", upstream_addr = o.addr,
            upstream_bytes_sent = o.sent,
            upstream_header_time = o.header_time or "- : ", headgate_peer = o.mark or "",
            upstream_response_time = o.times or "0.001 : -",
        }
        if upstream and o.policy then
            upstream.life.policies = true
        end
        local handed = fixture.handover()
        handed.give("u")
        balancer.new({
            get = function(name) return calls.var[name] end, handover = handed,
            ngx = {
                var = calls.var, log = function() calls.logged = true end, ERR = 1,
                exit = function(code) calls.exit = code end,
            },
            api = api, state = { stamp = function() return 1 end },
            upstreams = { get = function() return upstream end },
        })()
        return calls
    end

    --- What of a run is not always the same.
    local function essence(calls)
        return { calls.peer, calls.more or 0, calls.exit }
    end

    it("builds upstreams", function()
        local u = build({ peers = { "a:1", "b:1" }, draining = { "c:1" } }, "abc")
        assert.equal(3, u.count)
        assert.equal("00_http", u.pool)
        assert.equal("round_robin", u.kind)
        assert.is_nil(u.affinity)
        assert.equal(0, build({}, "x").count)
        assert.is_nil(build({ algorithm = "magic", peers = {} }, "x"))
        for _, kind in ipairs({ "least_conn", "p2c", "ewma", "random", "chash" }) do
            local v = build({ algorithm = kind, peers = { "a:1" } }, "x", u)
            assert.equal(kind, v.kind)
            assert.equal("a:1", pick(v))
        end
    end)

    it("goes on where the one before was", function()
        local u = build({ peers = { "a:1", "b:1", "c:1" } }, "u")
        assert.same({ "a:1", "b:1" }, { pick(u), pick(u) })
        assert.equal("c:1", pick(build({ peers = { "a:1", "b:1", "c:1", "d:1" } }, "u", u)))
    end)

    it("uses draining peers only when no ready one is left", function()
        local u = build({ peers = { "a:1" }, draining = { "b:1" } }, "x")
        assert.equal("a:1", pick(u))
        assert.equal("a:1", pick(u))
        assert.equal("b:1", pick(u, { ["a:1"] = true }))
        assert.equal("b:1", pick(build({ draining = { "b:1" } }, "y")))
        assert.is_nil(pick(u, { ["a:1"] = true, ["b:1"] = true }))
        assert.is_nil(pick(build({}, "z")))
    end)

    it("uses blocked peers when all others were tried, but no full ones", function()
        local u = build({ peers = { "a:1", "b:1" } }, "x")
        u.ready.peers[2].blocked = true
        assert.same({ "a:1", "a:1" }, { pick(u), pick(u) })
        assert.equal("b:1", pick(u, { ["a:1"] = true }))
        u = build({ peers = { "a:1", "b:1" }, limits = { peer = 1 } }, "y")
        u.ready.peers[2].blocked = true
        assert.is_nil(pick(u, { ["a:1"] = true }))
    end)

    it("sets a peer, and one more try at a time", function()
        local three = build({ peers = { "a:1", "b:1", "c:1" } }, "u")
        assert.same({ "a:1", 1 }, essence(run(three, {})))
        local tuned = run(three, { policy = "1000,2000,500,1,0" })
        assert.same({ "b:1", 0 }, essence(tuned))
        assert.same({ 1, 2, 0.5 }, tuned.timeouts)
        -- A single peer needs no second try.
        assert.same({ "a:1", 0 }, essence(run(build({ peers = { "a:1" } }, "v"), {})))
    end)

    it("retries on another peer, as often as the policy and the peers allow", function()
        local three = build({ peers = { "a:1", "b:1", "c:1" } }, "u")
        assert.same({ "b:1", 1 }, essence(run(three, { failed = "failed", addr = "a:1 : " })))
        assert.same({ "c:1", 0 },
            essence(run(three, { failed = "failed", addr = "a:1, b:1 : " })))
        local two = { failed = "failed", addr = "a:1 : ", policy = "1,1,1,2,0" }
        proxy.clock.at = proxy.clock.at + 1
        assert.equal(0, run(three, two).more or 0)
    end)

    it("tries a peer again when nginx asks once more though all were tried", function()
        local one = build({ peers = { "a:1" } }, "u")
        assert.same({ "a:1", 0 }, essence(run(one, { failed = "failed", addr = "a:1 : " })))
    end)

    it("refuses a retry so that the client gets 502", function()
        local two = build({ peers = { "a:1", "b:1" }, budget = { percent = 1, min = 1 } }, "u")
        local retry = { failed = "failed", addr = "a:1 : " }
        assert.same({ "b:1", 0 }, essence(run(two, retry)))
        local refused = run(two, retry)
        assert.same({ nil, 0, BUSY }, essence(refused))
        assert.equal("-", refused.var.headgate_peer)
        assert.equal(1, two.life.counts.retries)
        assert.equal(1, two.life.counts.refused)
        -- Nothing is promised any more, until the next second.
        assert.same({ "a:1", 0 }, essence(run(two, {})))
        proxy.clock.at = proxy.clock.at + 1
        assert.same({ "b:1", 1 }, essence(run(two, {})))
    end)

    it("counts no try that was refused, and tries every peer", function()
        local peers_of = { peers = { "a:1", "b:1", "c:1", "d:1", "e:1" },
            budget = { percent = 1, min = 0 } }
        local five = build(peers_of, "u")
        local function refused(addr, sent, status)
            return { failed = "failed", status = status or 502, addr = addr .. " : ",
                sent = sent .. " : ", policy = "1,1,1,2,0" }
        end
        assert.same({ "b:1", 1 }, essence(run(five, refused("a:1", "0"))))
        assert.same({ "c:1", 1 }, essence(run(five, refused("a:1, b:1", "0, 0"))))
        assert.same({ "d:1", 1 }, essence(run(five, refused("a:1, b:1, c:1", "0, 0, 0"))))
        -- The last one of all.
        assert.same({ "e:1", 0 },
            essence(run(five, refused("a:1, b:1, c:1, d:1", "0, 0, 0, 0"))))
        assert.equal(4, five.life.counts.retries)
        -- What was sent counts, and so does a time-out; the budget has none.
        assert.equal(BUSY, run(five, refused("a:1", "120")).exit)
        assert.equal(BUSY, run(five, refused("a:1", "0", 504)).exit)
        assert.same({ 2, true }, { balancer.unsent("0, 120, 0 : ") })
        assert.same({ 1, false }, { balancer.unsent("0, 120 : ") })
        assert.same({ 0, false }, { balancer.unsent(nil) })
    end)

    it("makes no more tries when the time is over", function()
        local two = build({ peers = { "a:1", "b:1" } }, "u")
        local retry = {
            failed = "failed", addr = "a:1 : ", policy = "1,1,1,3,1500", times = "1.499 : -",
        }
        assert.equal("b:1", run(two, retry).peer)
        retry.times = "1.500 : -"
        assert.equal(BUSY, run(two, retry).exit)
    end)

    it("counts failures against the peer", function()
        local three = build({ peers = { "a:1", "b:1", "c:1" }, ejection = { failures = 1 } }, "u")
        run(three, { failed = "failed", addr = "a:1 : " })
        assert.is_true(three.ready.peers[1].blocked)
        run(three, { failed = "next", addr = "b:1 : ", header_time = "0.010 : " })
        assert.is_false(three.ready.peers[2].blocked)
    end)

    it("counts what is in flight, try by try", function()
        local two = build({ peers = { "a:1", "b:1" }, algorithm = "least_conn" }, "u")
        local a, b = two.ready.peers[1], two.ready.peers[2]
        local call = run(two, {})
        assert.equal("a:1", call.var.headgate_peer)
        assert.same({ 1, 0 }, { peers.load(a), peers.load(b) })
        call = run(two, { failed = "failed", addr = "a:1 : ", mark = "a:1" })
        assert.equal("b:1", call.var.headgate_peer)
        assert.same({ 0, 1 }, { peers.load(a), peers.load(b) })
        -- One that the router let in.
        call = run(two, { mark = "+" })
        assert.equal("+a:1", call.var.headgate_peer)
        call = run(two, { refused = true })
        assert.is_true(call.logged)
        assert.equal("", call.var.headgate_peer)
        assert.same({ 1, 1 }, { peers.load(a), peers.load(b) })
    end)

    it("marks a refused retry after a time-out", function()
        local one = build({ peers = { "a:1", "b:1" } }, "u")
        local refused = run(one, {
            failed = "failed", addr = "a:1 : ", status = 504, times = "2.0 : ",
            policy = "1,1,1,3,1000",
        })
        assert.same({ BUSY, "t-" }, { refused.exit, refused.var.headgate_peer })
    end)

    it("takes another peer for a full one, and none when all are", function()
        local two = build({ peers = { "a:1", "b:1" }, limits = { peer = 1 } }, "u")
        assert.equal("a:1", run(two, {}).peer)
        assert.equal("b:1", run(two, {}).peer)
        assert.is_nil(run(two, {}).peer)
        -- What failed is not tried again, though it is free now.
        local retry = run(two, { failed = "failed", addr = "a:1 : ", mark = "+a:1" })
        assert.equal(BUSY, retry.exit)
        assert.equal("+-", retry.var.headgate_peer)
        assert.same({ 0, 1 },
            { peers.load(two.ready.peers[1]), peers.load(two.ready.peers[2]) })
    end)

    it("sets no peer where there is none", function()
        for _, u in ipairs({ build({}, "x"), false }) do
            assert.same({ nil, 0 }, essence(run(u or nil, {})))
            assert.same({ nil, 0 }, essence(run(u or nil, { failed = "failed", addr = "a:1" })))
        end
    end)

    it("reads what nginx tells of the tries", function()
        local tried, last, n = balancer.tried("a:1, [::1]:2 : ")
        assert.same({ ["a:1"] = true, ["[::1]:2"] = true }, tried)
        assert.same({ "[::1]:2", 2 }, { last, n })
        assert.same({}, (balancer.tried(nil)))
        assert.equal(0.75, balancer.spent("0.250, 0.500 : -"))
        assert.equal(0, balancer.spent(nil))
    end)

    it("reads policies", function()
        assert.same({ connect = 1, send = 2, read = 0.5, tries = 4, total = 1.5 },
            balancer.parse_policy("1000,2000,500,4,1500"))
        assert.is_nil(balancer.parse_policy("1000,2000,500,4,0").total)
        assert.same({ tries = 3 }, balancer.parse_policy("odd"))
    end)
end)
