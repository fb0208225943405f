--- What nginx.conf told init_by_lua: build, generation, profiles (a set), listeners (how many it
-- has), metrics (whether requests are counted), access_log (whether there is one); and the number
-- of the load (era.lua). One table for each load of the configuration.
local _M = {
    schema = 0, build = "", generation = "", load = 0, profiles = {}, listeners = 0,
    metrics = false, access_log = false,
}

return _M
