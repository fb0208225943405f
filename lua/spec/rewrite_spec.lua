package.path = "./?.lua;./spec/?.lua;" .. package.path

local rewrite = require "headgate.rewrite"

local function escape(s)
    return (s:gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end))
end

describe("rewrite", function()
    local cases = {
        { "literal", { "/new" }, {}, "/new" },
        { "groups", { "/x/", 1, "/", 2 }, { "a", "b" }, "/x/a/b" },
        { "a group that took no part", { "/x", 1 }, { false }, "/x" },
        { "a group that is missing", { "/x", 3 }, {}, "/x" },
        { "no leading slash", { 1 }, { "a" }, "/a" },
        { "nothing", {}, {}, "/" },
        { "a query", { "/x?a=", 1, "&b=?" }, { "v&w" }, "/x", "a=v%26w&b=?" },
        { "a question mark in a group is data", { "/x/", 1 }, { "a?b" }, "/x/a?b" },
        { "an empty query", { "/x?" }, {}, "/x", "" },
    }
    for _, c in ipairs(cases) do
        it(c[1], function()
            local path, query = rewrite.build(c[2], c[3], escape)
            assert.equal(c[4], path)
            assert.equal(c[5], query)
        end)
    end

    it("joins queries as nginx does", function()
        assert.equal("a=1&b=2", rewrite.join_query("a=1", "b=2"))
        assert.equal("a=1", rewrite.join_query("a=1", nil))
        assert.equal("b=2", rewrite.join_query("", "b=2"))
    end)
end)
