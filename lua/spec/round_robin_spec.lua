package.path = "./?.lua;./spec/?.lua;" .. package.path

local round_robin = require "headgate.balancer.round_robin"

local function first() return 1 end

local function peers(list)
    local out = {}
    for i, p in ipairs(list) do
        out[i] = { address = p[1], weight = p[2] or 1 }
    end
    return out
end

local function picks(balancer, n, tried)
    local out = {}
    for i = 1, n do
        out[i] = balancer:pick(tried)
    end
    return table.concat(out, " ")
end

describe("round robin", function()
    it("goes round", function()
        local b = round_robin.new(peers({ { "a" }, { "b" }, { "c" } }), nil, first)
        assert.equal("a b c a b c", picks(b, 6))
    end)

    it("starts where chance says", function()
        local list = peers({ { "a" }, { "b" }, { "c" } })
        local b = round_robin.new(list, nil, function() return 3 end)
        assert.equal("c a b", picks(b, 3))
    end)

    it("is smooth with weights, as nginx", function()
        local b = round_robin.new(peers({ { "a", 5 }, { "b", 1 }, { "c", 1 } }), nil, first)
        assert.equal("a a b a c a a", picks(b, 7))
    end)

    it("leaves out what was tried", function()
        for _, weight in ipairs({ 1, 2 }) do
            local b = round_robin.new(peers({ { "a", weight }, { "b" } }), nil, first)
            assert.equal("b b", picks(b, 2, { a = true }))
            assert.is_nil(b:pick({ a = true, b = true }))
        end
    end)

    it("goes on after a change of the peers", function()
        local b = round_robin.new(peers({ { "a" }, { "b" }, { "c" } }), nil, first)
        picks(b, 2) -- a b
        b = round_robin.new(peers({ { "a" }, { "b" }, { "c" }, { "d" } }), b, first)
        assert.equal("c d a", picks(b, 3))
        b = round_robin.new(peers({ { "b" }, { "c" } }), b, first) -- a, the last one, is gone
        assert.equal("b c b", picks(b, 3))
    end)

    it("keeps what weighted peers were given", function()
        local list = { { "a", 3 }, { "b", 1 } }
        local b, count = round_robin.new(peers(list), nil, first), { a = 0, b = 0 }
        for _ = 1, 40 do -- a change after each pick must not favour anybody
            b = round_robin.new(peers(list), b, first)
            local p = b:pick()
            count[p] = count[p] + 1
        end
        assert.same({ a = 30, b = 10 }, count)
    end)
end)
