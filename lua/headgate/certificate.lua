--- Chooses the certificate of a handshake by SNI: the exact name, the one-label wildcard, the host
-- that serves any name, the default of the settings, else what nginx.conf names. Whatever goes
-- wrong, the handshake goes on with the certificate of nginx.conf.
local find, gsub, lower, sub = string.find, string.gsub, string.lower, string.sub

local _M = {}

local MAX_NAME_BYTES = 253

local built = 0

--- The build function of state:kind("cert"): a number that stands for what was pushed, which is
-- read again when it is to be parsed. (The PEM of 5,000 certificates is 6 MiB.)
function _M.build_certificate(decoded)
    if type(decoded.chain) ~= "string" or type(decoded.key) ~= "string" then
        return nil, "a certificate without chain or key"
    end
    built = built + 1
    return built
end

--- The build function of state:kind("sni").
function _M.build_sni(decoded)
    if type(decoded.certificate) ~= "string" then
        return nil, "names no certificate"
    end
    return decoded.certificate
end

--- Make the function of the phase.
-- @tparam table o ssl: ngx.ssl; state, sni, certificates, settings: of this worker; report;
--   cache: see recent.lua, for parsed certificates: {token, chain, key}, without chain and key when
--   it never could be parsed
-- @treturn function
function _M.new(o)
    local ssl, cache = o.ssl, o.cache

    --- Parse a certificate, once per pushed body. One that does not parse leaves the one before it.
    local function parsed(id, stamp)
        local token = o.certificates:get(id, stamp)
        if not token then
            return nil
        end
        local known = cache:get(id)
        if known and known.token == token then
            return known.chain and known
        end
        local pem = o.certificates:read(id)
        if not pem then
            -- It was deleted just now.
            return known and known.chain and known
        end
        local chain, chain_err = ssl.parse_pem_cert(pem.chain)
        local key, key_err
        if chain then
            key, key_err = ssl.parse_pem_priv_key(pem.key)
        end
        if not key then
            o.report:failed("cert/" .. id, chain_err or key_err or "cannot be parsed")
            known = known or {}
            known.token = token
            cache:set(id, known)
            return known.chain and known
        end
        known = { token = token, chain = chain, key = key }
        cache:set(id, known)
        return known
    end

    local function by_name(name, stamp)
        local id = o.sni:get(name, stamp)
        return id and parsed(id, stamp)
    end

    local function choose(name, stamp)
        local found
        -- No client's name is a wildcard.
        if name and #name <= MAX_NAME_BYTES and not find(name, "^%*") and name ~= "" then
            name = gsub(lower(name), "%.$", "")
            found = by_name(name, stamp)
            local dot = find(name, ".", 1, true)
            if not found and dot and dot > 1 then
                found = by_name("*" .. sub(name, dot), stamp)
            end
        end
        found = found or by_name("", stamp)
        if found then
            return found
        end
        local settings = o.settings:get("global", stamp)
        local id = settings and settings.defaultCertificate
        return id and parsed(id, stamp)
    end

    return function()
        local stamp = o.state:stamp()
        local found = choose(ssl.server_name(), stamp)
        if not found then
            return
        end
        local ok, err = ssl.clear_certs()
        if ok then
            ok, err = ssl.set_cert(found.chain)
        end
        if ok then
            ok, err = ssl.set_priv_key(found.key)
        end
        if not ok then
            o.log("certificate for ", ssl.server_name(), ": ", err)
        end
    end
end

return _M
