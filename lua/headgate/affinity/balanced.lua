--- Sticky cookie, mode "balanced": the cookie holds a random key, and a consistent hash of it picks
-- the peer. A new peer takes its share of the sessions, the sessions of one that goes spread over
-- all others, and every proxy agrees without knowing any session.
local eligible = require "headgate.balancer.eligible"
local hashed = require "headgate.affinity.hashed"
local territory = require "headgate.affinity.territory"

local format = string.format

local _M = {}
local mt = { __index = _M }

-- Of so many keys, one should belong to a peer that can be had.
local KEYS = 20
local WORD = 4294967296

--- @tparam table o kind, ready, draining, previous, jar: see sticky_cookie.lua, cookie, key,
--   random, crc32
-- @treturn table with pick(upstream, ctx, pick)
function _M.new(o)
    local previous = o.previous
    return setmetatable({
        kind = o.kind, jar = o.jar, key = o.key, random = o.random,
        change = o.cookie.changeOnFailure,
        territory = territory.new(o.ready, o.draining, previous and previous.territory, o.crc32),
    }, mt)
end

--- Has the peer of a session failed? One that is only full has not.
local function failed(self, key, ctx)
    local own = self.territory:owner(key)
    return not eligible(own, ctx) and not own.full
end

local function new_session(self, ctx)
    local random = self.random
    for _ = 1, KEYS do
        local key = format("%08x%08x", random() * WORD, random() * WORD)
        local peer = self.territory:home(key, ctx)
        if peer then
            self.jar:send(key)
            return peer
        end
    end
end

--- Pick the peer of the session, or begin one.
-- @tparam table upstream
-- @tparam table ctx tried: set of addresses that failed, or nil
-- @tparam function pick function(upstream, ctx) of the algorithm: it picks, and binds nobody, when
--   nobody can be had who would keep the session
-- @treturn table|nil peer
function _M:pick(upstream, ctx, pick)
    ctx.any = false
    local key = self.jar:read()
    local peer
    if key and not (self.change and failed(self, key, ctx)) then
        peer = self.territory:keep(key, ctx)
    else
        peer = new_session(self, ctx)
    end
    return peer or hashed.pick(self, upstream, ctx, pick)
end

return _M
