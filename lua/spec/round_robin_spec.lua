package.path = "./?.lua;./spec/?.lua;" .. package.path

local crowd = require "crowd"
local round_robin = require "headgate.balancer.round_robin"

local peers, picks = crowd.peers, crowd.picks

local FIRST = { random = function(n) return n and 1 or 0 end }

describe("round robin", function()
    it("goes round", function()
        local b = round_robin.new(peers({ "a", "b", "c" }), nil, FIRST)
        assert.equal("a b c a b c", picks(b, 6))
    end)

    it("starts where chance says", function()
        local third = { random = function() return 3 end }
        local b = round_robin.new(peers({ "a", "b", "c" }), nil, third)
        assert.equal("c a b", picks(b, 3))
    end)

    it("is smooth with weights, as nginx", function()
        local b = round_robin.new(peers({ { "a", 5 }, { "b", 1 }, { "c", 1 } }), nil, FIRST)
        assert.equal("a a b a c a a", picks(b, 7))
    end)

    it("leaves out what was tried, and what is blocked unless any will do", function()
        for _, weight in ipairs({ 1, 2 }) do
            local list = peers({ { "a", weight }, { "b" } })
            local b = round_robin.new(list, nil, FIRST)
            assert.equal("b b", picks(b, 2, { tried = { a = true } }))
            assert.is_nil(b:pick({ tried = { a = true, b = true } }))
            list[2].blocked = true
            assert.equal("a a", picks(b, 2))
            assert.is_nil(b:pick({ tried = { a = true } }))
            assert.equal("b", picks(b, 1, { tried = { a = true }, any = true }))
        end
    end)

    it("goes on after a change of the peers", function()
        local b = round_robin.new(peers({ "a", "b", "c" }), nil, FIRST)
        picks(b, 2) -- a b
        b = round_robin.new(peers({ "a", "b", "c", "d" }), b, FIRST)
        assert.equal("c d a", picks(b, 3))
        b = round_robin.new(peers({ "b", "c" }), b, FIRST) -- a, the last one, is gone
        assert.equal("b c b", picks(b, 3))
        b = round_robin.new(peers({ "x", "y" }), b, FIRST) -- all are gone
        assert.equal("x y x", picks(b, 3))
    end)

    it("goes on in the order of the list, which is not that of text", function()
        local b = round_robin.new(peers({ "9", "10", "11" }), nil, FIRST)
        picks(b, 2) -- 9 10
        assert.equal("11 9", picks(round_robin.new(peers({ "9", "11" }), b, FIRST), 2))
    end)

    it("keeps what weighted peers were given", function()
        local list = { { "a", 3 }, { "b", 1 } }
        local b, count = round_robin.new(peers(list), nil, FIRST), { a = 0, b = 0 }
        for _ = 1, 40 do -- a change after each pick must not favour anybody
            b = round_robin.new(peers(list), b, FIRST)
            local address = b:pick({}).address
            count[address] = count[address] + 1
        end
        assert.same({ a = 30, b = 10 }, count)
    end)

    it("takes no old debts to new weights", function()
        local b = round_robin.new(peers({ { "a", 1000 }, { "b", 1 } }), nil, FIRST)
        picks(b, 400) -- b is owed 400
        b = round_robin.new(peers({ { "a", 3 }, { "b", 1 } }), b, FIRST)
        local count = crowd.counts(b, 8)
        assert.is_true(count.a >= 5 and count.a <= 7, count.a)
        -- Equal ones need no memory, and weights after them begin anew.
        b = round_robin.new(peers({ "a", "b" }), b, FIRST)
        assert.same({ a = 4, b = 4 }, crowd.counts(b, 8))
        b = round_robin.new(peers({ { "a", 3 }, { "b", 1 } }), b, FIRST)
        assert.same({ a = 6, b = 2 }, crowd.counts(b, 8))
    end)

    it("heeds the weights of very many, too", function()
        local list = crowd.pods(1000)
        list[1].weight, list[2].weight = 100, 50
        local b = round_robin.new(list, nil, { random = crowd.random() })
        local count = crowd.counts(b, 57400)
        assert.is_true(math.abs(count[list[1].address] / 5000 - 1) < 0.1)
        assert.is_true(math.abs(count[list[2].address] / 2500 - 1) < 0.1)
        b = round_robin.new(list, b, { random = crowd.random() })
        assert.is_table(b:pick({}))
    end)

    it("lets a peer in slow start have its share", function()
        for _, weight in ipairs({ 1, 2 }) do
            local list = peers({ { "a", weight }, { "b", weight }, { "c" } })
            list[1].share = 0.25
            local b = round_robin.new(list, nil, { random = crowd.random() })
            local count = crowd.counts(b, 4000)
            assert.is_true(math.abs(count.a / count.b - 0.25) < 0.05, count.a / count.b)
        end
        local list = peers({ "a", "b" })
        list[1].share, list[2].share = 0, 0
        assert.equal("a b", picks(round_robin.new(list, nil, FIRST), 2))
    end)

    it("is exact over random edits: who stays all the time gets the same as its equals", function()
        local random = crowd.random()
        for _ = 1, 20 do
            local b, count = nil, { ["10"] = 0, ["30"] = 0 }
            for _ = 1, 50 do
                local list = { "10" }
                if random(2) == 1 then list[#list + 1] = "20" end
                list[#list + 1] = "30"
                if random(2) == 1 then list[#list + 1] = "40" end
                b = round_robin.new(peers(list), b, { random = random })
                for _ = 1, random(7) do
                    local address = b:pick({}).address
                    if count[address] then count[address] = count[address] + 1 end
                end
            end
            assert.is_true(math.abs(count["10"] - count["30"]) <= 1,
                count["10"] .. " " .. count["30"])
        end
    end)
end)
