package.path = "./?.lua;./spec/?.lua;" .. package.path

local boot = require "headgate.boot"
local fixture = require "fixture"

local function start(dict, meta)
    local ids = { n = 0 }
    assert(boot.start({
        dict = dict, meta = meta, encode = fixture.encode,
        new_id = function() ids.n = ids.n + 1 return "id" .. tostring({}) end,
    }))
    return ids.n
end

describe("boot", function()
    it("names new dicts and keeps known ones", function()
        local dict, meta = fixture.dict(), fixture.dict()
        assert.equal(1, start(dict, meta))
        meta:safe_set("revision", 7)
        assert.equal(0, start(dict, meta))
        assert.equal(7, meta:get("revision"))
    end)

    it("forgets the revision when a reload made the state dict anew", function()
        local meta = fixture.dict()
        start(fixture.dict(), meta)
        meta:safe_set("revision", 7)
        meta:safe_set("pusher", "p")
        local before = meta:get("boot")
        assert.equal(1, start(fixture.dict(), meta))
        assert.equal(0, meta:get("revision"))
        assert.is_nil(meta:get("pusher"))
        assert.not_equal(before, meta:get("boot"))
    end)
end)
