--- May a peer be picked? Shared by the algorithms.
-- @tparam table peer {address, blocked}
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn boolean
return function(peer, ctx)
    if peer.blocked and not ctx.any then
        return false
    end
    local tried = ctx.tried
    return not (tried and tried[peer.address])
end
