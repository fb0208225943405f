--- The cookie of a sticky session: its value is read from requests, and Set-Cookie (RFC 6265
-- section 4.1) is written. Values of clients are compared and hashed, never sent back.
local concat, tonumber = table.concat, tonumber
local find, match, sub = string.find, string.match, string.sub

local _M = {}
local mt = { __index = _M }

local NAME = "INGRESSCOOKIE"
-- Ours have 16 bytes, those of ingress-nginx some 60, which serve as keys, too.
local MAX_VALUE_BYTES = 128
local MAX_AGENT_BYTES = 512

--- @tparam table cookie as pushed: name, path, domain, expires, maxAge (seconds), sameSite,
--   conditionalNone, secure
-- @tparam table o get: of variable.reader(); ngx: with var, time and http_time
-- @treturn table with read(), send(value)
function _M.new(cookie, o)
    local name = cookie.name or NAME
    return setmetatable({
        cookie = cookie, name = name, variable = "cookie_" .. name, get = o.get, ngx = o.ngx,
    }, mt)
end

--- The value that the client sent; of several the first, as nginx has it.
-- @treturn string|nil nil when there is none, or one that is too long to be ours
function _M:read()
    local value = self.get(self.variable)
    if value and value ~= "" and #value <= MAX_VALUE_BYTES then
        return value
    end
end

--- Chromium's list of clients that refuse a cookie with SameSite=None, or take it for Strict:
-- https://www.chromium.org/updates/same-site/incompatible-clients. Plain finds only, and in the
-- beginning of the header: the client chose it.
local function misreads_none(agent)
    agent = sub(agent or "", 1, MAX_AGENT_BYTES)
    local function has(text)
        return find(agent, text, 1, true) ~= nil
    end
    local chrome = tonumber(match(agent, "Chrome/(%d+)") or match(agent, "Chromium/(%d+)"))
    if chrome and chrome >= 51 and chrome <= 66 then
        return true
    end
    if has("CPU iPhone OS 12_") or has("CPU OS 12_") then
        return true
    end
    if has("Mac OS X 10_14") and not chrome and has("AppleWebKit/") then
        return true
    end
    local major, minor, build = match(agent, "UCBrowser/(%d+)%.(%d+)%.(%d+)")
    if major then
        return tonumber(major) * 1000000 + tonumber(minor) * 1000 + tonumber(build) < 12013002
    end
    return false
end

--- A path as it may stand in the header: ";" and control characters would end the attribute.
local function path_of(self)
    local path = self.cookie.path or self.get("headgate_cookie_path")
    if not path or sub(path, 1, 1) ~= "/" or find(path, "[%c;\127-\255]") then
        return "/"
    end
    return path
end

local function secure(self)
    if self.cookie.secure ~= nil then
        return self.cookie.secure
    end
    return (self.get("headgate_scheme") or self.get("scheme")) == "https"
end

--- Set the cookie with the answer to this request.
-- @tparam string value of cookie-octets
function _M:send(value)
    local cookie, ngx = self.cookie, self.ngx
    local t, n = { self.name, "=", value }, 3
    local function add(name, attribute)
        t[n + 1], t[n + 2], n = name, attribute, n + 2
    end
    if cookie.expires then
        add("; Expires=", ngx.http_time(ngx.time() + cookie.expires))
    end
    if cookie.maxAge then
        add("; Max-Age=", cookie.maxAge)
    end
    if cookie.domain then
        add("; Domain=", cookie.domain)
    end
    add("; Path=", path_of(self))
    add(secure(self) and "; Secure" or "", "; HttpOnly")
    local same_site = cookie.sameSite
    if same_site and not (same_site == "None" and cookie.conditionalNone
        and misreads_none(self.get("http_user_agent"))) then
        add("; SameSite=", same_site)
    end
    ngx.var.headgate_cookie = concat(t, "", 1, n)
end

return _M
