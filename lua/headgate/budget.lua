--- Bounds the retries of an upstream to a share of its requests and some a second, so that they
-- cannot multiply an overload. The share is kept by each worker, of its own requests; those that
-- are always allowed are counted in a shared dict, which only requests that fail pay for.
--
-- nginx must know before a try whether there will be another one, or else the client gets 502 in
-- place of the real error. So a try is promised first and paid for when it is made. While requests
-- fail, a promise puts aside what it will cost as far as one can tell: otherwise thousands that
-- wait for a time-out would all be promised the same few retries.
local tally = require "headgate.tally"

local floor, max, min = math.floor, math.max, math.min

local _M = {}
local mt = { __index = _M }

-- RetryBudget of gateway/model.
local DEFAULT_PERCENT, DEFAULT_MIN = 20, 3
-- Below this the share of promises that were used is taken for none.
local NOTHING = 0.01

-- What most have for ever stands here once.
_M.rate, _M.least, _M.unlimited = DEFAULT_PERCENT / 100, DEFAULT_MIN, false
_M.second, _M.credit, _M.aside, _M.promised, _M.used = 0, 0, 0, 0, 0
_M.least_promised, _M.least_used, _M.least_gone = 0, 0, false

--- @tparam table o dict: shared; now: function() seconds of a clock that never jumps
-- @tparam string id of the upstream
-- @tparam number requests that there were before any retry was asked for
-- @tparam number since when they were counted
function _M.new(o, id, requests, since)
    return setmetatable({
        shared = o, id = id, requests = requests, calm = true, calm_from = since,
    }, mt)
end

--- Take over what was pushed.
-- @tparam table|nil pushed {unlimited} or {percent, min}
function _M:configure(pushed)
    if not pushed and self.rate == _M.rate and self.least == _M.least and not self.unlimited then
        return
    end
    pushed = pushed or {}
    self.unlimited = pushed.unlimited == true
    if self.unlimited and not self.calm then
        self.calm, self.calm_from, self.requests = true, self.shared.now(), 0
    end
    self.rate = (pushed.percent or DEFAULT_PERCENT) / 100
    self.least = pushed.min or DEFAULT_MIN
end

--- The first retry for long: see what the requests before it are worth. Until then they are only
-- counted, for every request pays for that.
local function wake(self)
    local now = self.shared.now()
    local a_second = self.requests / max(1, now - self.calm_from)
    local most = max(1, self.rate * a_second)
    self.credit = min(self.credit + self.rate * self.requests, most)
    self.calm, self.second, self.requests, self.promised = false, floor(now), a_second, a_second
    self.least_promised, self.least_used, self.least_gone = 0, 0, false
end

local function turn(self, second)
    -- What was saved lasts as long as a second's requests are worth.
    local most = max(1, self.rate * self.requests)
    for _ = 1, min(second - self.second, 16) do
        self.promised, self.used = self.promised / 2, self.used / 2
    end
    if self.used < NOTHING then
        self.credit, self.aside, self.used = self.credit + self.aside, 0, 0
        self.calm, self.calm_from = true, self.shared.now()
    end
    self.credit = min(self.credit, most)
    self.second, self.requests = second, 0
    self.least_promised, self.least_used, self.least_gone = 0, 0, false
end

--- Count a request.
-- @treturn boolean one retry is promised
function _M:began()
    self.requests = self.requests + 1
    if self.calm then
        return true
    end
    local second = floor(self.shared.now())
    if second ~= self.second then
        turn(self, second)
        self.requests = 1
    end
    self.credit = self.credit + self.rate
    return self:promise()
end

--- Promise a retry.
-- @treturn boolean
function _M:promise()
    if self.calm then
        return true
    end
    local cost = self.used > 0 and min(1, self.used / max(1, self.promised)) or 0
    if self.credit >= 1 then
        self.credit, self.aside = self.credit - cost, self.aside + cost
    elseif self.least_gone or self.least_promised >= self.least then
        return false
    else
        self.least_promised = self.least_promised + cost
    end
    self.promised = self.promised + 1
    return true
end

local function spend_least(self)
    local name = "retry/" .. self.id .. "/" .. self.second
    local n = tally(self.shared.dict, name, 2)
    if not n then
        -- The dict is full: this worker counts for itself.
        n = self.least_used + 1
        self.least_used = n
    end
    if n > self.least then
        self.least_gone = true
        return false
    end
    return true
end

--- Pay for a retry.
-- @treturn boolean false: it must not be made
function _M:spend()
    if self.unlimited then
        return true
    end
    local second = floor(self.shared.now())
    if self.calm then
        wake(self)
    elseif second ~= self.second then
        turn(self, second)
        if self.calm then
            wake(self)
        end
    end
    self.used = self.used + 1
    if self.aside >= 1 then
        self.aside = self.aside - 1
        return true
    end
    if self.credit >= 1 then
        self.credit = self.credit - 1
        return true
    end
    return spend_least(self)
end

return _M
