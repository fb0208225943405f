package.path = "./?.lua;./spec/?.lua;" .. package.path

local certificate = require "headgate.certificate"
local fixture = require "fixture"

describe("certificate", function()
    local sni, pems, settings, report, parses, served, cache, fail

    local function get_from(t)
        local function get(_, name) return t()[name] end
        return { get = get, read = get }
    end

    --- Run the phase for a name; gives the certificate that the client would see.
    local function handshake(name)
        served = "static"
        certificate.new({
            ssl = {
                server_name = function() return name end,
                parse_pem_cert = function(pem)
                    parses = parses + 1
                    if pem == "bad" then
                        return nil, "not PEM"
                    end
                    return pem
                end,
                parse_pem_priv_key = function(pem) return pem end,
                clear_certs = function() served = "none" return true end,
                set_cert = function(chain) served = chain return true end,
                set_priv_key = function()
                    if fail then
                        return nil, "mismatch"
                    end
                    return true
                end,
            },
            state = { stamp = function() return 1 end }, report = report,
            sni = get_from(function() return sni end),
            certificates = get_from(function() return pems end),
            settings = { get = function() return settings end },
            cache = {
                get = function(_, id) return cache[id] end,
                set = function(_, id, v) cache[id] = v end,
            },
            log = function() end,
        })()
        return served
    end

    before_each(function()
        sni = { ["a.x"] = "a", ["*.x"] = "w", ["gone.y"] = "gone" }
        pems = {}
        for id, chain in pairs({ a = "A", w = "W", d = "D" }) do
            pems[id] = { chain = chain, key = "k" }
        end
        settings, report, parses, cache, fail = {}, fixture.report(), 0, {}, false
    end)

    it("chooses by exact name, wildcard, default", function()
        assert.equal("A", handshake("a.x"))
        assert.equal("A", handshake("A.X."))
        assert.equal("W", handshake("b.x"))
        local long = ("a"):rep(300) .. ".x"
        for _, name in ipairs({ "a.b.x", "x", "", ".x", "*.x", "gone.y", long, "\0.x\0" }) do
            assert.equal("static", handshake(name), name)
        end
        assert.equal("static", handshake(nil))
        settings = { defaultCertificate = "d" }
        assert.equal("D", handshake("gone.y"))
        assert.equal("D", handshake(nil))
        sni[""] = "w"
        assert.equal("W", handshake("other"))
    end)

    it("parses a certificate once", function()
        handshake("a.x")
        handshake("a.x")
        assert.equal(1, parses)
        pems.a = { chain = "A2", key = "k" }
        assert.equal("A2", handshake("a.x"))
        assert.equal(2, parses)
    end)

    it("keeps the certificate before one that does not parse", function()
        handshake("a.x")
        pems.a = { chain = "bad", key = "k" }
        assert.equal("A", handshake("a.x"))
        assert.equal("A", handshake("a.x"))
        assert.equal("not PEM", report.errors["cert/a"])
        assert.equal(2, parses)
        pems.w = { chain = "bad", key = "k" }
        assert.equal("static", handshake("b.x"))
    end)
end)
