package.path = "./?.lua;./spec/?.lua;" .. package.path

local hash_key = require "headgate.hash_key"

local function read(parts, var)
    return hash_key.new(parts, function(name) return var[name] end):read()
end

describe("hash key", function()
    it("reads each kind", function()
        local var = {
            request_uri = "/a?b", http_x_user_id = "u", cookie_session = "c", arg_q = "q",
        }
        assert.equal("/a?b", read({ { "variable", "request_uri" } }, var))
        assert.equal("u", read({ { "header", "x-user-id" } }, var))
        assert.equal("c", read({ { "cookie", "session" } }, var))
        assert.equal("q", read({ { "argument", "q" } }, var))
    end)

    it("joins parts, with what is missing as nothing", function()
        local parts = {
            { "literal", "a-" }, { "header", "x" }, { "literal", "-" }, { "argument", "y" },
        }
        local key = hash_key.new(parts, function(name)
            return ({ http_x = "1" })[name]
        end)
        assert.equal("a-1-", key:read())
        assert.equal("a-1-", key:read())
    end)

    it("is none when the request has none of the values", function()
        assert.is_nil(read({ { "header", "x" } }, {}))
        local parts = { { "literal", "a" }, { "header", "x" }, { "cookie", "y" } }
        assert.is_nil(read(parts, { cookie_y = "" }))
        assert.is_nil(read({ { "literal", "a" } }, {}))
        assert.is_nil(read({}, {}))
    end)

    it("refuses a kind that is not known", function()
        assert.has_error(function() read({ { "magic", "x" } }, {}) end)
    end)

    it("keeps bytes as they are", function()
        local odd = "\0\255\r\n;"
        assert.equal(odd, read({ { "argument", "x" } }, { arg_x = odd }))
    end)
end)
