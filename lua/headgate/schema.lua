--- The number of the shape of pushed state (docs/design/0001-seams.md). Any other is refused.
local _M = { NUMBER = 1 }

return _M
