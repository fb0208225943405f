package.path = "./?.lua;./spec/?.lua;" .. package.path

local cells = require "headgate.cells"
local peers_fixture = require "peers_fixture"

local function always() return true end

describe("cells", function()
    local clock, dict, home

    before_each(function()
        clock = peers_fixture.clock()
        dict, home = peers_fixture.dict(clock), peers_fixture.dict(clock)
    end)

    local function open()
        return assert(cells.open({
            dict = dict, home = home, now = clock.now, random = function() return 1 end,
        }))
    end

    local function worker(pid, alive)
        local c = open()
        assert.is_true(c:claim(pid, alive or always))
        return c
    end

    it("add up what each worker has", function()
        local a, b = worker(1), worker(2)
        local cell = a:find("x")
        assert.equal(cell, b:find("x"))
        assert.not_equal(cell, b:find("y"))
        a:set(cell, 3)
        b:set(cell, 4)
        assert.equal(7, a:sum(cell))
        a:set(cell, 1)
        assert.equal(5, b:sum(cell))
        assert.equal(0, b:sum(b:find("y")))
    end)

    it("lose what a dead worker had, and nothing else", function()
        local a, b = worker(1), worker(2)
        local cell = a:find("x")
        a:set(cell, 3)
        b:set(cell, 4)
        -- Worker 1 was killed; the one that follows takes its place.
        local c = worker(3, function(pid) return pid ~= 1 end)
        assert.equal(4, c:sum(cell))
        assert.equal(a.slot, c.slot)
        c:set(cell, 1)
        assert.equal(5, b:sum(cell))
    end)

    it("are cleared when the pid of a dead worker comes again", function()
        local a = worker(1)
        local cell = a:find("x")
        a:set(cell, 3)
        assert.equal(0, worker(1):sum(cell))
    end)

    it("are cleared once where several workers see a death", function()
        local a, b, c = worker(1), worker(2), worker(3)
        local cell = a:find("x")
        a:set(cell, 3)
        local function alive(pid) return pid ~= 1 end
        b:reap(2, alive)
        c:reap(3, alive)
        assert.equal(0, b:sum(cell))
        local d = worker(4, alive)
        d:set(cell, 2)
        c:reap(3, alive)
        assert.equal(2, b:sum(cell))
    end)

    it("tell a worker without a slot that there is none", function()
        for i = 1, 256 do
            worker(i)
        end
        local c = open()
        assert.is_false(c:claim(257, always))
        assert.is_nil(c:find("new"))
    end)

    it("belong to a key while it is renewed", function()
        local a = worker(1)
        local cell = a:find("x")
        for _ = 1, 10 do
            clock.at = clock.at + 300
            assert.equal(cell, a:find("x"))
        end
        clock.at = clock.at + 601
        assert.not_equal(cell, a:find("x"))
    end)

    it("are used again when all were given, but not while something is counted", function()
        local a = worker(1)
        for i = 1, 32768 do
            assert.is_number(a:find("k" .. i))
        end
        assert.is_nil(a:find("more"))
        local busy = a:find("k1")
        assert.equal(0, busy)
        a:set(1, 5)
        clock.at = clock.at + 700
        local found = {}
        for i = 1, 40 do
            found[a:find("n" .. i)] = true
        end
        -- The search begins at cell 1, where random points to.
        assert.is_nil(found[1])
        assert.is_true(found[2])
        a:set(1, 0)
    end)

    it("give a key one cell, though two workers look at once", function()
        local a, b = worker(1), worker(2)
        local add, other = dict.safe_add, nil
        dict.safe_add = function(d, key, ...)
            if key == "cell/x" and not other then
                dict.safe_add = add
                other = b:find("x")
            end
            return add(d, key, ...)
        end
        assert.equal(a:find("x"), b:find("x"))
        assert.is_number(other)
    end)

    it("have none for a key when the dict is full", function()
        local a = worker(1)
        dict.full = true
        assert.is_nil(a:find("x"))
    end)
end)
