--- What one worker tells about itself, for GET /v1/state: the revision that it uses and the objects
-- that it could not decode. Written when the worker sees a new revision and once a second.
local _M = {}
local mt = { __index = _M }

-- How old a report may be; the timer renews it each second. It does not end by itself: keys end by
-- the clock of the day, and one that is put forward would end those of all workers at once.
_M.KEEP_SECONDS = 10
local MAX_ERRORS = 20

--- The worker sets pid and generation when it starts.
-- @tparam table o meta: dict, now: function() seconds of a clock that never jumps, encode; leaving:
--   function() true once this worker takes no new connections, nil for one that always does
function _M.new(o)
    return setmetatable({
        meta = o.meta, now = o.now, encode = o.encode, leaving = o.leaving,
        pid = 0, generation = "", revision = 0, errors = {},
    }, mt)
end

--- Remember that an object cannot be used.
function _M:failed(pointer, err)
    self.errors[pointer] = err
end

--- Forget the error of an object.
function _M:fine(pointer)
    self.errors[pointer] = nil
end

--- Write the report.
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string error
function _M:write()
    local errors = {}
    for pointer, err in pairs(self.errors) do
        if #errors < MAX_ERRORS then
            errors[#errors + 1] = pointer .. ": " .. err
        end
    end
    table.sort(errors)
    return self.meta:safe_set("w/" .. self.pid, self.encode({
        pid = self.pid, generation = self.generation, revision = self.revision,
        at = self.now(), errors = errors,
        leaving = self.leaving and self.leaving() or nil,
    }))
end

return _M
