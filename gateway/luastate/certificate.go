package luastate

import (
	"encoding/pem"

	"headgate/gateway/model"
)

// encodeCertificate writes PEM, the form that every version of ngx.ssl parses; a worker parses a
// certificate once and keeps the result: {"chain", "key"}.
func encodeCertificate(c *model.Certificate) []byte {
	var chain []byte
	for _, der := range c.Chain {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	var j jsonWriter
	j.object(func() {
		j.field("chain").text(string(chain))
		j.field("key").text(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: c.Key})))
	})
	return j.buf
}
