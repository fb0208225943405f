--- Lets requests into an upstream with limits. The balancer cannot wait, so the router does: a
-- request is let in while the peers together have room, waits in a short queue of this worker, or
-- is refused. The circuit breaker refuses at once.
local ceil, max, min = math.ceil, math.max, math.min

local _M = {}
local mt = { __index = _M }

-- Limits of gateway/model.
local DEFAULT_QUEUE_MS = 1000
-- Requests that end in this worker wake one that waits; those that end in another one are seen when
-- it looks again.
local LOOK_SECONDS = 0.01

--- @tparam table life of peers.lua
-- @tparam table o cells, now, semaphore: ngx.semaphore
function _M.new(life, o)
    return setmetatable({
        life = life, cells = o.cells, now = o.now, semaphores = o.semaphore, running = 0,
        queued = 0, line = {}, bounded = false,
    }, mt)
end

--- Take over what was pushed.
-- @tparam table limits {peer, queue, queueMs, requests}
function _M:configure(limits)
    self.per_peer, self.most = limits.peer, limits.requests
    self.places = limits.queue or 0
    self.seconds = (limits.queueMs or DEFAULT_QUEUE_MS) / 1000
    self.bounded = (limits.peer or limits.requests) ~= nil
end

--- Requests in flight to the upstream, of all workers.
local function total(self)
    local cell = self.cell
    return cell and self.cells:sum(cell) or self.running
end

local function set_running(self, n)
    self.running = n
    if self.cell then
        self.cells:set(self.cell, n)
    end
end

local function set_queued(self, n)
    self.queued = n
    if self.line.cell then
        self.cells:set(self.line.cell, n)
    end
end

--- Count a request in if that leaves no more than bound.
local function try(self, bound)
    set_running(self, self.running + 1)
    self.cells:fence()
    if total(self) <= bound then
        return true
    end
    set_running(self, self.running - 1)
    return false
end

--- How many the peers together may have.
local function room(self)
    self.life:look()
    return self.per_peer * max(1, self.life.open)
end

local function wait(self)
    self.semaphore = self.semaphore or self.semaphores.new(0)
    local deadline, most = self.now() + self.seconds, self.most or math.huge
    repeat
        -- A time-out is no failure here: it is time to look again.
        self.semaphore:wait(max(0.001, min(LOOK_SECONDS, deadline - self.now())))
        if try(self, min(most, room(self))) then
            return true
        end
    until self.now() >= deadline
    return false
end

local function wait_in_queue(self)
    if self.queued >= self.places then
        self.life:note("overflowed")
        return false
    end
    set_queued(self, self.queued + 1)
    local ok = wait(self)
    set_queued(self, self.queued - 1)
    if not ok then
        self.life:note("overflowed")
    end
    return ok
end

--- Let a request in, now or after a while. It may yield.
-- @treturn[1] boolean true: leave() must follow when it ended
-- @treturn[2] boolean false: 503
-- @treturn[2] number after how many seconds the client may try again
function _M:enter()
    local most = self.most
    if most and total(self) >= most then
        self.life:note("broken")
        return false, 1
    end
    if not self.per_peer then
        if try(self, most) then
            return true
        end
        self.life:note("broken")
        return false, 1
    end
    -- Nobody overtakes those who wait.
    if self.queued == 0 and try(self, min(most or math.huge, room(self))) then
        return true
    end
    if wait_in_queue(self) then
        return true
    end
    return false, max(1, ceil(self.seconds))
end

--- A request that was let in ended.
function _M:leave()
    set_running(self, self.running - 1)
    if self.queued > 0 then
        self.semaphore:post(1)
    end
end

--- How many wait, in all workers.
function _M:waiting()
    local cell = self.line.cell
    return cell and self.cells:sum(cell) or self.queued
end

return _M
