--- Lets one push run at a time, across workers: a key of the small dict that names the pusher, the
-- revision and the part that came last, and vanishes by itself when no part follows in time.
local match, tonumber = string.match, tonumber

local _M = {}
local mt = { __index = _M }

local KEY = "push"
local SECONDS = 10

--- @tparam table meta the small dict
-- @tparam function now seconds of a clock that never jumps: keys end by the clock of the day, and
--   one that is put back would keep the lock of a dead pusher for so long
function _M.new(meta, now)
    return setmetatable({ meta = meta, now = now }, mt)
end

local function value(self, push, part)
    return push.pusher .. " " .. push.revision .. " " .. part .. " " .. self.now() + SECONDS
end

local function holder(self)
    local pusher, revision, part, ends =
        match(self.meta:get(KEY) or "", "^(%S+) (%d+) (%d+) (%S+)$")
    if pusher and self.now() < tonumber(ends) then
        return pusher, tonumber(revision), tonumber(part)
    end
end

--- Take or renew the lock for a part of a push.
-- @tparam table push pusher, revision, part
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "busy": somebody else pushes; "base": the parts before this one are not known;
--   "memory"
-- @treturn[2] string|nil who
function _M:take(push)
    if push.part == 1 then
        local ok, err = self.meta:safe_add(KEY, value(self, push, 1), SECONDS)
        if ok then
            return true
        end
        if err ~= "exists" then
            return nil, "memory"
        end
    end
    local pusher, revision, part = holder(self)
    if pusher and pusher ~= push.pusher then
        return nil, "busy", pusher
    end
    -- The same pusher may start again at any time.
    if push.part > 1 and (revision ~= push.revision or part ~= push.part - 1) then
        return nil, "base", pusher
    end
    if not self.meta:safe_set(KEY, value(self, push, push.part), SECONDS) then
        return nil, "memory"
    end
    return true
end

function _M:release()
    self.meta:delete(KEY)
end

return _M
