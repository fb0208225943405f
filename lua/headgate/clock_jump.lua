--- Keys of a shared dict end by the clock of the day, which may be put on or back at any time. What
-- matters has its end, by the clock that never jumps, beside its value, and whoever reads it looks
-- there. Its key lives longer by so many seconds: a clock that is put on by less ends nothing
-- early, and what is over goes some day without anybody's help.
return 86400
