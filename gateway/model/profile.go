package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Name is the name of the profile's location in nginx.conf, without the "@" that starts it: a hash
// of the content, so that equal profiles share a name and a changed one never keeps it. It holds
// letters, digits and "_" only.
func (p Profile) Name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "buffering=%t unbuffered=%t body=%q nonIdempotent=%t",
		p.Buffering, p.RequestUnbuffered, p.BodyClass, p.RetryNonIdempotent))
	return "headgate_profile_" + hex.EncodeToString(sum[:6])
}

// Bytes is the cap that the class stands for; 0 means no limit.
func (c BodyClass) Bytes() int64 {
	switch c {
	case Body1M:
		return 1 << 20
	case Body16M:
		return 16 << 20
	case Body256M:
		return 256 << 20
	case BodyUnlimited:
	}
	return 0
}
