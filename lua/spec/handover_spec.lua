package.path = "./?.lua;./spec/?.lua;" .. package.path

local ffi = require "ffi"
local handover = require "headgate.handover"

describe("handover", function()
    it("tells each request its own, until it is forgotten", function()
        local at = 0x7f0000001000
        local handed = handover.new({
            get_request = function() return ffi.cast("void *", at) end,
        })
        assert.is_nil(handed.upstream())
        handed.give("u")
        handed.tell("l")
        at = 0x7f0000001008
        assert.is_nil(handed.upstream())
        assert.is_nil(handed.label())
        handed.give("v")
        at = 0x7f0000001000
        assert.equal("u", handed.upstream())
        assert.equal("l", handed.label())
        handed.forget()
        assert.is_nil(handed.upstream())
        assert.is_nil(handed.label())
        at = 0x7f0000001008
        assert.equal("v", handed.upstream())
    end)
end)
