package.path = "./?.lua;./spec/?.lua;" .. package.path

local crowd = require "crowd"
local recent = require "headgate.recent"

describe("recent", function()
    local released, gone, cache

    before_each(function()
        released = {}
        gone = {}
        cache = recent.new(2, function(value, key)
            released[#released + 1], gone[#gone + 1] = value, key or "-"
        end)
    end)

    it("holds what was asked for last, and releases the rest at once", function()
        cache:set("a", 1)
        cache:set("b", 2)
        assert.equal(1, cache:get("a"))
        cache:set("c", 3)
        assert.same({ 2 }, released)
        assert.is_nil(cache:get("b"))
        assert.equal(1, cache:get("a"))
        assert.equal(3, cache:get("c"))
        cache:set("d", 4)
        assert.same({ 2, 1 }, released)
    end)

    it("releases a value that another one replaces, but not the same one", function()
        cache:set("a", 1)
        cache:set("a", 1)
        assert.same({}, released)
        cache:set("a", 2)
        assert.same({ 1 }, released)
        cache:set("b", 3)
        cache:set("a", 4)
        assert.same({ 1, 2 }, released)
        cache:set("c", 5) -- b was not asked for since
        assert.same({ 1, 2, 3 }, released)
        assert.same({ "-", "-", "b" }, gone)
    end)

    it("holds each value once and releases the others once, over random requests", function()
        local random, made, held = crowd.random(), {}, {}
        local seen = {}
        local all = recent.new(7, function(value)
            assert.is_nil(seen[value])
            seen[value] = true
        end)
        for n = 1, 5000 do
            local key = random(20)
            local value = all:get(key)
            assert.equal(held[key] and not seen[held[key]] and held[key] or nil, value)
            if not value or random(10) == 1 then
                made[n], held[key] = true, n
                all:set(key, n)
            end
        end
        local left = 0
        for n in pairs(made) do
            left = left + (seen[n] and 0 or 1)
        end
        assert.equal(7, left)
        assert.equal(7, all.count)
    end)
end)
