package.path = "./?.lua;./spec/?.lua;" .. package.path

local ffi = require "ffi"
local variable = require "headgate.variable"

describe("variable", function()
    --- A reader over a fake of nginx that has values and, where it is asked by ngx.var, others.
    local function open(values, others)
        local asked = { direct = 0 }
        local kept = {}
        local opened = variable.open({
            var = setmetatable({}, { __index = function(_, name)
                asked[#asked + 1] = name
                return (others or values)[name]
            end }),
            get_request = function() end,
            nginx = {
                ngx_hash_key = function(_, length) return length end,
                ngx_http_get_variable = function(_, name, hash)
                    assert.equal(hash, name.hash)
                    asked.direct = asked.direct + 1
                    local text = values[ffi.string(name.text, name.length)]
                    local value = ffi.new("headgate_value")
                    kept[#kept + 1] = value
                    if not text then
                        value.bits = 0x40000000 -- not_found
                        return value
                    end
                    value.bits = #text + 0x10000000 -- valid
                    value.data = ffi.cast("unsigned char *", text)
                    return value
                end,
                ngx_atoi = function(data, n)
                    return tonumber(ffi.string(data, n):match("^%d+$") or "-1")
                end,
                ngx_atofp = function(data, n)
                    local s = tonumber(ffi.string(data, n):match("^[%d.]+$") or "-1")
                    return s < 0 and -1 or math.floor(s * 1000 + 0.5)
                end,
            },
        })
        return opened, asked
    end

    local VALUES = { host = "a.test", bytes_sent = "120", request_time = "0.012", empty = "" }

    local function check(read)
        for _ = 1, 3 do
            assert.equal("a.test", read.get("host"))
            assert.is_nil(read.get("none"))
            for _, how in ipairs({ "get", "whole", "seconds" }) do
                assert.equal(1, select("#", read[how]("none"))) -- tonumber() wants a value
            end
            assert.equal("", read.get("empty"))
            assert.equal(120, read.whole("bytes_sent"))
            assert.is_nil(read.whole("none"))
            assert.is_nil(read.whole("host"))
            assert.equal(0.012, read.seconds("request_time"))
            assert.is_nil(read.seconds("empty"))
            assert.is_true(read.filled("host"))
            assert.is_false(read.filled("empty"))
            assert.is_false(read.filled("none"))
        end
    end

    it("reads from nginx itself, and compares each name once", function()
        local read, asked = open(VALUES)
        check(read)
        table.sort(asked)
        assert.same({ "bytes_sent", "empty", "host", "none", "request_time" }, { unpack(asked) })
    end)

    it("uses ngx.var where the values of nginx look otherwise", function()
        local read, asked = open({ host = "x" }, VALUES)
        check(read)
        assert.is_true(#asked > 30)
        assert.equal(3, asked.direct) -- the comparisons
    end)

    it("is not misled by what changes between two reads", function()
        local n = 0
        local counter = setmetatable({}, { __index = function(_, name)
            n = n + 1
            return name == "host" and "a.test" or n == 1 and "7" or "8"
        end })
        local read, asked = open(counter)
        assert.equal("8", read.get("connections_active"))
        assert.equal("a.test", read.get("host"))
        assert.equal("a.test", read.get("host"))
        assert.is_true(#asked < asked.direct)
    end)
end)
