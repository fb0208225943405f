--- Which peers are out, shared by the workers. The truth is a key for each ejected peer in a shared
-- dict, which ends with the ejection. A number in shared memory tells that there was an event, and
-- events are numbered keys: each worker reads that number at each pick (1 ns) and the keys only
-- when it has changed, so that the next request knows what another worker has just learned.
local tally = require "headgate.tally"

local match = string.match

local _M = {}
local mt = { __index = _M }

-- Failures in a row are forgotten when nothing came after them for so long.
local FAILURE_SECONDS = 600
local EVENT_SECONDS = 60
local MAX_EVENTS = 256
-- A back-off grows by up to this share, so that peers that fell together do not return together.
local JITTER = 0.2
local MAX_DOUBLINGS = 20

--- @tparam table o dict: shared; cells: see cells.lua; random: as math.random
function _M.new(o)
    return setmetatable({ dict = o.dict, cells = o.cells, random = o.random, seen = 0 }, mt)
end

--- Count a failure.
-- @tparam string key of the peer
-- @treturn number failures in a row, of all workers that saw one; 1 when they cannot be counted
function _M:failure(key)
    return tally(self.dict, "failures/" .. key, FAILURE_SECONDS) or 1
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

--- Eject a peer.
-- @tparam string key
-- @tparam table policy base, max: seconds
-- @tparam number now
-- @treturn number until when
-- @treturn number|nil how often it was ejected of late; nil when another worker did it
function _M:eject(key, policy, now)
    local dict = self.dict
    local times = (dict:get("times/" .. key) or 0) + 1
    local seconds = self:back_off(times, policy)
    local ok, err = dict:safe_add("ejected/" .. key, now + seconds, seconds)
    if not ok and err == "exists" then
        local until_when = dict:get("ejected/" .. key)
        if until_when and until_when > now then
            return until_when, nil
        end
        -- It is over. Keys end by the clock of the day, which may have been put back.
        ok = dict:safe_set("ejected/" .. key, now + seconds, seconds)
    end
    -- Where the dict is full, this worker ejects it for itself.
    dict:safe_set("times/" .. key, times, seconds + policy.max)
    dict:delete("failures/" .. key)
    if ok then
        tell(self, key)
    end
    return now + seconds, times
end

--- Until when a peer is out, if it is.
-- @treturn number|nil seconds
function _M:ejected(key)
    return self.dict:get("ejected/" .. key)
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
    return self.dict:get("times/" .. key) or 0, self.dict:get("failures/" .. key) or 0
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
