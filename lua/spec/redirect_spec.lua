package.path = "./?.lua;./spec/?.lua;" .. package.path

local redirect = require "headgate.redirect"

describe("redirect", function()
    it("writes the Location", function()
        local plain, keep = { status = 308 }, { status = 308, keepSlash = true }
        assert.equal("https://h", redirect.location(plain, "h", "/"))
        assert.equal("https://h/a", redirect.location(plain, "h", "/a/"))
        assert.equal("https://h/a/?b=/", redirect.location(plain, "h", "/a/?b=/"))
        assert.equal("https://h/a/", redirect.location(keep, "h", "/a/"))
        assert.equal("https://h:8443/a", redirect.location(plain, "h", "/a", 8443))
    end)

    it("takes the name out of a Host header", function()
        assert.equal("a.b", redirect.name("a.b:80"))
        assert.equal("a.b", redirect.name("a.b:"))
        assert.equal("[::1]", redirect.name("[::1]:80"))
        for _, bad in ipairs({ "", "a b", "a/b", "a\r\nX: y", "a@b", "a:b", "a:80:80" }) do
            assert.is_nil(redirect.name(bad))
        end
    end)

    it("exempts by prefix, literally", function()
        local prefixes = { "/.well-known/acme-challenge" }
        assert.is_true(redirect.exempt("/.well-known/acme-challenge/x", prefixes))
        assert.is_false(redirect.exempt("/xwell-known/acme-challenge/x", prefixes))
        assert.is_false(redirect.exempt("/", prefixes))
        assert.is_false(redirect.exempt("/", nil))
    end)
end)
