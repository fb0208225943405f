--- What nginx.conf told init_by_lua: build, generation, profiles (a set). One table for each load
-- of the configuration.
local _M = { schema = 0, build = "", generation = "", profiles = {} }

return _M
