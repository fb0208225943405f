package.path = "./?.lua;./spec/?.lua;" .. package.path

local former = require "headgate.former"

describe("a host that a later load came over", function()
    local function build(decoded)
        if decoded.bad then
            return nil, decoded.bad
        end
        return { name = decoded.name }
    end

    it("is kept as it was, through all that is pushed later", function()
        local over = false
        local keeping = former.keeping(build, function() return over end)
        local first = keeping({ name = 1 }, "h", nil)
        local second = keeping({ name = 2 }, "h", first)
        assert.is_nil(second.before)
        over = true
        local third = keeping({ name = 3 }, "h", second)
        assert.equal(second, third.before)
        assert.equal(second, keeping({ name = 4 }, "h", third).before)
        assert.is_nil(keeping({ name = 5 }, "h", nil).before)
        assert.same({ nil, "no" }, { keeping({ bad = "no" }, "h", third) })
    end)

    local PLAIN, HTTPS, OTHER_HTTPS = nil, "_https", "headgate_https_0123"
    for name, c in pairs({
        ["other limits"] = { was = PLAIN, is = PLAIN, profile = "known", goes = true },
        ["the default profile"] = { was = PLAIN, is = PLAIN, goes = true },
        ["another certificate"] = { was = HTTPS, is = OTHER_HTTPS, profile = "known", goes = true },
        ["TLS before"] = { was = "_grpcs", is = "_grpc", profile = "known", goes = true },
        ["TLS now"] = { was = PLAIN, is = HTTPS, profile = "known" },
        ["TLS for gRPC now"] = { was = "_grpc", is = "headgate_grpcs_0123", profile = "known" },
        ["a profile that is not there either"] = { was = PLAIN, is = PLAIN, profile = "lost" },
    }) do
        it("is gone to, or not: " .. name, function()
            local was, now = { pool = c.was, profile = c.profile }, { pool = c.is, profile = "new" }
            local before = {}
            local o = { profiles = { known = true }, router = { match = function(_, host, path)
                assert.equal(before, host)
                assert.equal("/p", path)
                return was, "caught"
            end } }
            local route, captures = former.route(o, before, "/p", now, "new ones")
            assert.equal(c.goes and was or now, route)
            assert.equal(c.goes and "caught" or "new ones", captures)
            o.profiles.new = true
            assert.equal(now, (former.route(o, before, "/p", now)))
            o.profiles.new, o.router.match = nil, function() end
            assert.equal(now, (former.route(o, before, "/p", now)))
        end)
    end
end)
