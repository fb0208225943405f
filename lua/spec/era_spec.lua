package.path = "./?.lua;./spec/?.lua;" .. package.path

local era = require "headgate.era"
local fixture = require "fixture"

describe("a load of the configuration", function()
    it("is over when a worker of a later one has started, not before", function()
        local meta = fixture.dict()
        local old = era.number(meta)
        era.claim(meta, old)
        local new = era.number(meta)
        assert.is_false(era.over(meta, old))
        era.claim(meta, new)
        assert.is_true(era.over(meta, old))
        assert.is_false(era.over(meta, new))
    end)

    it("does not come back with a worker that was slow to start", function()
        local meta = fixture.dict()
        local old, new = era.number(meta), era.number(meta)
        era.claim(meta, new)
        era.claim(meta, old)
        assert.is_true(era.over(meta, old))
        assert.is_false(era.over(meta, new))
    end)

    it("that never came up changes nothing", function()
        local meta = fixture.dict()
        local first = era.number(meta)
        era.claim(meta, first)
        era.number(meta)
        era.claim(meta, first)
        assert.is_false(era.over(meta, first))
    end)
end)
