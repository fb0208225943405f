--- Counts in a shared dict that may be full. incr() with a first value throws other keys out of a
-- full dict, whatever they are worth; this one says that it cannot count.

--- Add one to a number, which begins at 0.
-- @tparam table dict shared
-- @tparam string key
-- @tparam number|nil seconds after which it ends by the clock of the day, from its first count;
--   nil: never
-- @tparam number|nil flags what stands beside it from then on
-- @treturn number|nil nil when the dict is full
return function(dict, key, seconds, flags)
    local n, err = dict:incr(key, 1)
    if n or err ~= "not found" then
        return n
    end
    local ok
    ok, err = dict:safe_add(key, 1, seconds, flags)
    if ok then
        return 1
    end
    return err == "exists" and dict:incr(key, 1) or nil
end
