package.path = "./?.lua;./spec/?.lua;" .. package.path

local balancer = require "headgate.balancer"

local build = balancer.builder({
    crc32 = function(s) return #s end, random = function() return 1 end,
})

--- Run the phase once; gives the peer that was set and the calls that were made.
local function run(upstream, o)
    local calls = {}
    local api = {
        get_last_failure = function() return o.failed end,
        set_current_peer = function(p) calls.peer = p return true end,
        set_more_tries = function(n) calls.more = n return true end,
        set_timeouts = function(...) calls.timeouts = { ... } return true end,
    }
    balancer.new({
        ngx = {
            var = {
                headgate_upstream = "u", headgate_policy = o.policy or "", upstream_addr = o.addr,
            },
        },
        api = api, state = { revision = function() return 1 end },
        upstreams = { get = function() return upstream end },
    })()
    return calls
end

describe("balancer", function()
    it("builds upstreams", function()
        local u = build({ peers = { "a:1", "b:1" }, draining = { "c:1" } }, "abc")
        assert.equal(3, u.count)
        assert.equal("03_headgate_pool", u.pool)
        assert.equal(0, build({}, "x").count)
        assert.is_nil(build({ algorithm = "magic", peers = {} }, "x"))
    end)

    it("uses draining peers only when no ready one is left", function()
        local u = build({ peers = { "a:1" }, draining = { "b:1" } }, "x")
        assert.equal("a:1", balancer.pick(u))
        assert.equal("a:1", balancer.pick(u))
        assert.equal("b:1", balancer.pick(u, { ["a:1"] = true }))
        assert.equal("b:1", balancer.pick(build({ draining = { "b:1" } }, "x")))
        -- All were tried: any may be tried again.
        assert.equal("a:1", balancer.pick(u, { ["a:1"] = true, ["b:1"] = true }))
        assert.is_falsy(balancer.pick(build({}, "x")))
    end)

    it("allows as many tries as there are peers, at most those of the route", function()
        local three = build({ peers = { "a:1", "b:1", "c:1" } }, "x")
        assert.same({ peer = "a:1", more = 2 }, run(three, {}))
        assert.same({ peer = "b:1", more = 1, timeouts = { 1, 2, 0.5 } },
            run(three, { policy = "1000,2000,500,2" }))
        assert.same({ peer = "a:1" }, run(build({ peers = { "a:1" } }, "x"), {}))
    end)

    it("retries on another peer", function()
        local two = build({ peers = { "a:1", "b:1" } }, "x")
        for _ = 1, 3 do
            assert.same({ peer = "b:1" }, run(two, { failed = "failed", addr = "a:1 : " }))
        end
    end)

    it("sets no peer where there is none", function()
        assert.same({}, run(build({}, "x"), {}))
        assert.same({}, run(nil, {}))
        assert.same({}, run(build({}, "x"), { failed = "failed", addr = "a:1" }))
    end)

    it("reads $upstream_addr", function()
        assert.same({ ["a:1"] = true, ["[::1]:2"] = true, [":"] = true },
            balancer.tried("a:1, [::1]:2 : "))
        assert.same({}, balancer.tried(nil))
    end)
end)
