--- Which peers are out, shared by the workers. The truth is a key for each ejected peer in a shared
-- dict, which holds the end of the ejection. A number in shared memory tells that there was an
-- event, and events are numbered keys: each worker reads that number at each pick (1 ns) and the
-- keys only when it has changed, so that the next request knows what another worker has just
-- learned.
local CLOCK_JUMP = require "headgate.clock_jump"
local tally = require "headgate.tally"

local ceil, floor, match = math.ceil, math.floor, string.match

local _M = {}
local mt = { __index = _M }

-- Failures in a row are forgotten so long after the first of them.
local FAILURE_SECONDS = 600
local EVENT_SECONDS = 60
local MAX_EVENTS = 256
-- A back-off grows by up to this share, so that peers that fell together do not return together.
local JITTER = 0.2
local MAX_DOUBLINGS = 20

--- @tparam table o dict: shared; cells: see cells.lua; now: function() seconds of a clock that
--   never jumps; random: as math.random
function _M.new(o)
    return setmetatable({
        dict = o.dict, cells = o.cells, now = o.now, random = o.random, seen = 0,
    }, mt)
end

--- Failures in a row of a peer, and whether they are too old to count.
local function failures_of(self, key)
    local n, begun = self.dict:get("failures/" .. key)
    return n or 0, n and self.now() - (begun or 0) >= FAILURE_SECONDS
end

--- Count a failure.
-- @tparam string key of the peer
-- @treturn number failures in a row, of all workers that saw one; 1 when they cannot be counted
function _M:failure(key)
    local dict, name, _, old = self.dict, "failures/" .. key, failures_of(self, key)
    if old then
        dict:delete(name)
    end
    return tally(dict, name, FAILURE_SECONDS, floor(self.now())) or 1
end

--- A worker that saw a failure saw a success.
function _M:success(key)
    self.dict:delete("failures/" .. key)
end

--- How long a peer stays out.
-- @tparam number times it was ejected, with this one
-- @tparam table policy base, max: seconds
-- @treturn number seconds, up to max and its jitter
function _M:back_off(times, policy)
    local doublings = math.min(times - 1, MAX_DOUBLINGS)
    return math.min(policy.base * 2 ^ doublings, policy.max) * (1 + JITTER * self.random())
end

local function tell(self, key)
    local n = tally(self.dict, "events")
    if n then
        self.dict:safe_set("event/" .. n, key, EVENT_SECONDS)
        self.cells:tell_events(n)
    end
end

--- How often a peer was ejected of late; what is remembered of it ends when it was well for long.
local function times_of(self, key)
    local times, ends = self.dict:get("times/" .. key)
    return times and self.now() < (ends or 0) and times or 0
end

--- Eject a peer.
-- @tparam string key
-- @tparam table policy base, max: seconds
-- @tparam number now
-- @treturn number until when
-- @treturn number|nil how often it was ejected of late; nil when another worker did it
function _M:eject(key, policy, now)
    local dict, name = self.dict, "ejected/" .. key
    local times = times_of(self, key) + 1
    local seconds = self:back_off(times, policy)
    local until_when = now + seconds
    local ok, err = dict:safe_add(name, until_when, seconds + CLOCK_JUMP)
    if not ok and err == "exists" then
        local others = self:ejected(key)
        if others then
            return others, nil
        end
        ok = dict:safe_set(name, until_when, seconds + CLOCK_JUMP) -- that one is over
    end
    -- Where the dict is full, this worker ejects it for itself.
    local remembered = seconds + policy.max
    dict:safe_set("times/" .. key, times, remembered + CLOCK_JUMP, ceil(now + remembered))
    dict:delete("failures/" .. key)
    if ok then
        tell(self, key)
    end
    return until_when, times
end

--- Until when a peer is out, if it is.
-- @treturn number|nil seconds
function _M:ejected(key)
    local until_when = self.dict:get("ejected/" .. key)
    return until_when and until_when > self.now() and until_when or nil
end

--- A peer returned by the clock; one worker is to tell of it.
-- @treturn boolean it is this one
function _M:returned(key, until_when)
    local name = ("returned/%s/%d"):format(key, until_when * 1000)
    return self.dict:safe_add(name, true, EVENT_SECONDS) == true
end

--- What is known of a peer, for people.
-- @treturn number ejections of late
-- @treturn number failures in a row
function _M:history(key)
    local failures, old = failures_of(self, key)
    return times_of(self, key), old and 0 or failures
end

--- Read what happened since the last call.
-- @tparam function each function(key), called for each peer that was ejected
-- @treturn boolean false when events are missing: look at every peer
function _M:news(each)
    local last = self.dict:get("events") or 0
    local from = self.seen + 1
    self.seen = last
    if self.cells:events() ~= last then
        self.cells:tell_events(last)
    end
    if last - from >= MAX_EVENTS then
        return false
    end
    for n = from, last do
        local key = self.dict:get("event/" .. n)
        if not key then
            return false
        end
        each(key)
    end
    return true
end

--- The key of a peer.
function _M.key(id, address)
    return id .. "|" .. address
end

--- @treturn string id
-- @treturn string address
function _M.split(key)
    return match(key, "^(.*)|([^|]*)$")
end

return _M
