package.path = "./?.lua;./spec/?.lua;" .. package.path

local ffi = require "ffi"
local request_id = require "headgate.request_id"

describe("request_id", function()
    it("mixes as SplitMix64 does", function()
        local step = 0x9e3779b97f4a7c15ULL
        for i, want in ipairs({
            0xe220a8397b1dcdafULL, 0x6e789e6aa1b965f4ULL, 0x06c45d188009454fULL,
        }) do
            assert.is_true(request_id.mix(step * i) == want)
        end
    end)

    --- The IDs that a worker with a seed makes.
    local function made(seed, n)
        local ids = {}
        local maker = request_id.new({
            get_request = function() end,
            nginx = {
                ngx_hex_dump = function(to, from, size)
                    for i = 0, size - 1 do
                        local digits = string.format("%02x", from[i])
                        to[2 * i], to[2 * i + 1] = digits:byte(1, 2)
                    end
                end,
                ngx_http_lua_ffi_var_set = function(_, name, length, _, value, size)
                    assert.equal("hg_id", name)
                    assert.equal(#name, length)
                    ids[#ids + 1] = ffi.string(value, size)
                end,
            },
        })
        maker.seed(seed)
        for _ = 1, n do
            maker.set()
        end
        return ids
    end

    it("gives each request an ID of 32 digits that no other has", function()
        local seen = {}
        for _, seed in ipairs({ ("a"):rep(16), ("a"):rep(15) .. "b" }) do
            for _, id in ipairs(made(seed, 5000)) do
                assert.truthy(id:find("^" .. ("[0-9a-f]"):rep(32) .. "$"))
                assert.is_nil(seen[id])
                seen[id] = true
            end
        end
    end)

    it("spreads the first digits, by which one may want to sample", function()
        local count = {}
        for _, id in ipairs(made(("a"):rep(16), 16000)) do
            local first = id:sub(1, 1)
            count[first] = (count[first] or 0) + 1
        end
        for _, n in pairs(count) do
            assert.is_true(n > 800 and n < 1200, n)
        end
    end)
end)
