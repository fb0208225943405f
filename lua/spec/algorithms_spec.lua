package.path = "./?.lua;./spec/?.lua;" .. package.path

local crowd = require "crowd"
local ewma = require "headgate.balancer.ewma"
local least_conn = require "headgate.balancer.least_conn"
local p2c = require "headgate.balancer.p2c"
local random_balancer = require "headgate.balancer.random"

local peers, picks, counts = crowd.peers, crowd.picks, crowd.counts

local ALL = { "chash", "ewma", "least_conn", "p2c", "random", "round_robin" }

describe("every algorithm", function()
    for _, name in ipairs(ALL) do
        local algorithm = require("headgate.balancer." .. name)

        it("picks whom it may: " .. name, function()
            local random = crowd.random()
            local ctx, b = {}, nil
            for _ = 1, 400 do
                local list, free = {}, 0
                for i = 1, random(6) do
                    list[i] = {
                        address = "10.0.0." .. random(9) + 10 * i, weight = random(3),
                        load = random(4), blocked = random(3) == 1,
                        share = random(4) == 1 and random() or nil,
                    }
                end
                b = algorithm.new(list, b, crowd.options({ random = random, subset = random(3) }))
                assert.equal(list, b.peers)
                ctx.tried, ctx.any = nil, random(2) == 1
                ctx.key = random(2) == 1 and "k" .. random(99) or nil
                if random(2) == 1 then
                    ctx.tried = { [list[1].address] = true }
                end
                local may = {}
                for _, p in ipairs(list) do
                    if (ctx.any or not p.blocked) and not (ctx.tried and ctx.tried[p.address]) then
                        may[p], free = true, free + 1
                    end
                end
                for _ = 1, 5 do
                    local peer = b:pick(ctx)
                    if free == 0 then
                        assert.is_nil(peer)
                    else
                        assert.is_true(may[peer])
                    end
                end
            end
        end)

        it("gives to equals equally: " .. name, function()
            local n = 10
            local b = algorithm.new(crowd.pods(n), nil, crowd.options())
            local all = counts(b, 20000)
            for _, p in ipairs(b.peers) do
                assert.is_true(math.abs(all[p.address] / 2000 - 1) < 0.1, all[p.address])
            end
        end)

        it("serves by one peer, and by 10,000 at a bearable price: " .. name, function()
            local options = crowd.options()
            local one = algorithm.new(peers({ "a" }), nil, options)
            assert.equal("a a a", picks(one, 3, { key = "x" }))
            local many, before = crowd.pods(10000), nil
            for _ = 1, 3 do
                before = algorithm.new(many, before, options)
                for _ = 1, 100 do
                    assert.is_table(before:pick({ key = "x" }))
                end
            end
            for _, p in ipairs(many) do
                p.blocked = true
            end
            assert.is_nil(before:pick({ key = "x" }))
            many[7777].blocked = false
            assert.equal(many[7777], before:pick({ key = "x" }))
        end)
    end

    for _, name in ipairs({ "ewma", "least_conn", "p2c", "random", "round_robin" }) do
        it("heeds weights: " .. name, function()
            local algorithm = require("headgate.balancer." .. name)
            local b = algorithm.new(peers({ { "a", 1 }, { "b", 2 }, { "c", 5 } }), nil,
                crowd.options())
            local all = counts(b, 16000)
            for address, share in pairs({ a = 2000, b = 4000, c = 10000 }) do
                assert.is_true(math.abs(all[address] / share - 1) < 0.1, address .. all[address])
            end
        end)
    end
end)

describe("random", function()
    it("gives a peer in slow start its share, also where draws fail", function()
        local list = peers({ { "a", 2 }, { "b", 1 }, { "c", 1 } })
        list[1].share = 0.1
        local b = random_balancer.new(list, nil, crowd.options())
        local all = counts(b, 20000)
        assert.is_true(math.abs(all.a / all.b - 0.2) < 0.05, all.a / all.b)
        list = crowd.pods(100)
        for i = 3, 100 do
            list[i].blocked = true
        end
        list[1].share = 0.5
        b = random_balancer.new(list, nil, crowd.options())
        all = counts(b, 9000)
        assert.is_true(math.abs(all[list[1].address] / 3000 - 1) < 0.1, all[list[1].address])
    end)
end)

describe("least_conn", function()
    it("picks the least loaded for its weight", function()
        local list = peers({ { "a", 1 }, { "b", 4 }, { "c", 1 } })
        list[1].load, list[2].load, list[3].load = 1, 3, 2
        local b = least_conn.new(list, nil, crowd.options())
        assert.equal("b b", picks(b, 2))
        list[2].load = 5
        assert.equal("a", picks(b, 1))
    end)

    it("keeps requests in flight in proportion to the weights", function()
        local random = crowd.random()
        local list = peers({ { "a", 1 }, { "b", 2 }, { "c", 1 } })
        local b, open = least_conn.new(list, nil, crowd.options()), {}
        for i = 1, 4000 do
            local p = b:pick({})
            p.load = p.load + 1
            open[#open + 1] = p
            if i > 40 then
                local done = table.remove(open, random(#open))
                done.load = done.load - 1
                local a, c = list[1].load, list[3].load
                assert.is_true(math.abs(a - c) <= 6 and math.abs(list[2].load - 2 * a) <= 12)
            end
        end
    end)

    it("lets even peers take turns, over changes too", function()
        local list = peers({ "a", "b", "c" })
        local b = least_conn.new(list, nil, crowd.options({ random = function() return 1 end }))
        assert.equal("a b c a", picks(b, 4))
        local weighted = peers({ { "a", 3 }, { "b", 1 } })
        local count = { a = 0, b = 0 }
        b = nil
        for _ = 1, 40 do
            b = least_conn.new(weighted, b, crowd.options())
            local address = b:pick({}).address
            count[address] = count[address] + 1
        end
        assert.same({ a = 30, b = 10 }, count)
    end)

    it("finds the idle ones of many within some requests", function()
        local list = crowd.pods(1000)
        for i, p in ipairs(list) do
            p.load = i % 100 == 0 and 0 or 5
        end
        local b = least_conn.new(list, nil, crowd.options())
        for _ = 1, 10 do
            assert.equal(0, b:pick({}).load)
        end
    end)
end)

describe("p2c", function()
    it("avoids the loaded", function()
        local list = crowd.pods(10)
        list[1].load = 100
        local all = counts(p2c.new(list, nil, crowd.options()), 1000)
        assert.is_nil(all[list[1].address])
        list = peers({ { "a", 1 }, { "b", 10 } })
        list[1].load, list[2].load = 1, 5
        assert.is_nil(counts(p2c.new(list, nil, crowd.options()), 100).a)
    end)

    it("keeps the most loaded close to the mean", function()
        local random = crowd.random()
        local list, open = crowd.pods(50), {}
        local b = p2c.new(list, nil, crowd.options({ random = random }))
        for i = 1, 5000 do
            local p = b:pick({})
            p.load = p.load + 1
            open[#open + 1] = p
            if i > 500 then -- 10 a peer
                local done = table.remove(open, random(#open))
                done.load = done.load - 1
                assert.is_true(p.load <= 15, p.load)
            end
        end
    end)
end)

describe("ewma", function()
    local clock
    local function options()
        return crowd.options({ now = function() return clock end })
    end

    before_each(function() clock = 1000 end)

    it("prefers the faster of two", function()
        local list = peers({ "fast", "slow" })
        local b = ewma.new(list, nil, options())
        for _ = 1, 50 do
            clock = clock + 0.1
            b:observe(list[1], 0.01)
            b:observe(list[2], 0.2)
        end
        assert.same({ fast = 100 }, counts(b, 100))
        -- Requests in flight count: a fast peer is not buried.
        list[1].load = 60
        assert.same({ slow = 100 }, counts(b, 100))
    end)

    it("decays in 10 s, so that a slow peer gets another chance", function()
        local list = peers({ "a", "b" })
        local b = ewma.new(list, nil, options())
        clock = clock + 10
        b:observe(list[1], 1)
        local at_once = b:average(list[1])
        assert.is_true(math.abs(at_once - (1 - math.exp(-1))) < 1e-9)
        clock = clock + 10
        assert.is_true(math.abs(b:average(list[1]) - at_once * math.exp(-1)) < 1e-9)
        clock = clock - 100 -- a clock that goes back does no harm
        assert.equal(at_once, b:average(list[1]))
    end)

    it("does not take failing at once for speed", function()
        local list = peers({ "good", "bad" })
        local b = ewma.new(list, nil, options())
        for _ = 1, 100 do
            clock = clock + 0.05
            b:observe(list[1], 3)
            b:observe(list[2], 0.001, true)
        end
        assert.is_true(b:average(list[2]) > b:average(list[1]))
        assert.same({ good = 50 }, counts(b, 50))
        -- However long it fails, its average stays within reach.
        for _ = 1, 10000 do
            clock = clock + 1
            b:observe(list[1], 3)
            b:observe(list[2], 0.001, true)
        end
        assert.is_true(b:average(list[2]) < 10)
    end)

    it("keeps the averages of peers that stay; a new one begins with their mean", function()
        local list = peers({ "a", "b", "c" })
        local b = ewma.new(list, nil, options())
        clock = clock + 1000
        b:observe(list[1], 0.1)
        b:observe(list[2], 0.3)
        b:observe(list[3], 5)
        local again = ewma.new(peers({ "a", "b", "d" }), b, options())
        assert.is_true(math.abs(again:average({ address = "a" }) - 0.1) < 1e-6)
        assert.is_true(math.abs(again:average({ address = "b" }) - 0.3) < 1e-6)
        assert.is_true(math.abs(again:average({ address = "d" }) - 0.2) < 1e-6)
        assert.equal(0, again:average({ address = "c" }))
        again:observe({ address = "c" }, 1) -- it answers after it left
        assert.equal(0, again:average({ address = "c" }))
    end)

    it("keeps averages over any edits", function()
        local random = crowd.random()
        local b, model = nil, {}
        for _ = 1, 300 do
            clock = clock + random()
            local list, present = {}, {}
            for i = 1, 8 do
                if random(3) > 1 or i == 1 then
                    list[#list + 1] = { address = "p" .. i, weight = 1, load = 0 }
                    present["p" .. i] = true
                end
            end
            b = ewma.new(list, b, options())
            for address, value in pairs(model) do
                if present[address] then
                    assert.is_true(math.abs(b:average({ address = address })
                        - value.average * math.exp((value.at - clock) / 10)) < 1e-9)
                end
            end
            model = {}
            for _, p in ipairs(list) do
                if random(2) == 1 then
                    b:observe(p, random())
                end
                model[p.address] = { average = b:average(p), at = clock }
            end
        end
    end)
end)
