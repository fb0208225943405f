package.path = "./?.lua;./spec/?.lua;" .. package.path

local sticky_cookie = require "headgate.sticky_cookie"

local function new(cookie, var)
    local ngx = {
        var = var, time = function() return 1000 end,
        http_time = function(t) return "<" .. t .. ">" end,
    }
    return sticky_cookie.new(cookie, { ngx = ngx, get = function(name) return var[name] end })
end

local function sent(cookie, var)
    var = var or {}
    new(cookie, var):send("v")
    return var.headgate_cookie
end

describe("sticky cookie", function()
    it("has all attributes", function()
        assert.equal("INGRESSCOOKIE=v; Path=/; HttpOnly", sent({}))
        assert.equal("s=v; Expires=<4600>; Max-Age=60; Domain=a.test; Path=/p; Secure; HttpOnly; "
            .. "SameSite=Strict",
            sent({
                name = "s", expires = 3600, maxAge = 60, domain = "a.test", path = "/p",
                secure = true, sameSite = "Strict",
            }))
    end)

    it("takes the path of the route where it has none", function()
        local function at(cookie, path)
            return sent(cookie, { headgate_cookie_path = path })
        end
        assert.equal("INGRESSCOOKIE=v; Path=/r; HttpOnly", at({}, "/r"))
        assert.equal("INGRESSCOOKIE=v; Path=/p; HttpOnly", at({ path = "/p" }, "/r"))
        for _, path in ipairs({ "", "x", "/a;b", "/a\r\nX: y", "/\0", "/\127", "/ä" }) do
            assert.equal("INGRESSCOOKIE=v; Path=/; HttpOnly", at({}, path))
        end
    end)

    it("is secure by the scheme, if nothing else is said", function()
        for _, c in ipairs({
            { {}, "http", nil, false }, { {}, "https", nil, true },
            { {}, "http", "https", true }, { {}, "https", "http", false }, -- a trusted proxy told
            { { secure = true }, "http", nil, true }, { { secure = false }, "https", nil, false },
        }) do
            local text = sent(c[1], { scheme = c[2], headgate_scheme = c[3] })
            assert.equal(c[4], text:find("; Secure", 1, true) ~= nil)
        end
    end)

    it("leaves SameSite=None out for clients that misread it", function()
        local ios = "Mozilla/5.0 (iPhone; CPU iPhone OS %s like Mac OS X) AppleWebKit/605.1.15 "
            .. "(KHTML, like Gecko) Version/12.0 Mobile/15E148 Safari/604.1"
        local mac = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_%s) AppleWebKit/605.1.15 "
            .. "(KHTML, like Gecko) Version/12.1 Safari/605.1.15"
        local chrome = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_14_6) AppleWebKit/537.36 "
            .. "(KHTML, like Gecko) Chrome/%s Safari/537.36"
        for agent, misreads in pairs({
            [ios:format("12_4")] = true, [ios:format("13_1")] = false,
            ["Mozilla/5.0 (iPad; CPU OS 12_2 like Mac OS X) AppleWebKit/605"] = true,
            [mac:format("14_6")] = true, [mac:format("15_1")] = false,
            [chrome:format("50.0.1")] = false, [chrome:format("51.0.1")] = true,
            [chrome:format("66.0.1")] = true, [chrome:format("67.0.1")] = false,
            [chrome:format("120.0.0.0")] = false, [chrome:format("400.0")] = false,
            ["Chromium/60.0.1"] = true,
            ["UCBrowser/12.13.1.1"] = true, ["UCBrowser/12.13.2.1"] = false,
            ["curl/7"] = false, [""] = false, [("("):rep(60000) .. "Chrome/60.0"] = false,
        }) do
            local function attribute(same_site, conditional)
                local cookie = { sameSite = same_site, conditionalNone = conditional }
                return sent(cookie, { http_user_agent = agent }):match("SameSite=(%a+)")
            end
            assert.equal(not misreads and "None" or nil, attribute("None", true), agent)
            assert.equal("None", attribute("None", nil))
            assert.equal("Lax", attribute("Lax", true))
        end
        assert.is_truthy(sent({ sameSite = "None", conditionalNone = true }):find("SameSite=None"))
    end)

    it("reads a value that may be ours, and no other", function()
        local function read(value)
            return new({ name = "s" }, { cookie_s = value }):read()
        end
        assert.equal("abc", read("abc"))
        assert.equal("\0\255", read("\0\255"))
        assert.equal(("x"):rep(128), read(("x"):rep(128)))
        assert.is_nil(read(nil))
        assert.is_nil(read(""))
        assert.is_nil(read(("x"):rep(129)))
    end)
end)
