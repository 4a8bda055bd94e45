package mcp

import (
	"math/bits"
	"sync"
)

// maxKeptBuffer is the largest buffer that is kept for another event, in bytes.
const maxKeptBuffer = 4 << 20

// buffers are those of events, by the logarithm of their size. A reader keeps none of more than eventBuffer bytes longer
// than its event: large ones are rare, but clearing new memory for each is half of what it costs. What lies here goes
// with the second garbage collection.
var buffers [bits.UintSize]sync.Pool

// takeBuffer is an empty buffer for at least size bytes. It may hold old bytes beyond its length.
func takeBuffer(size int) []byte {
	class := bits.Len(uint(size - 1))
	if b, ok := buffers[class].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	if size <= maxKeptBuffer {
		size = 1 << class
	}
	return make([]byte, 0, size)
}

// keepBuffer gives back what takeBuffer gave, or nothing, when nobody looks at it any more.
func keepBuffer(b []byte) {
	if size := cap(b); size > 0 && size <= maxKeptBuffer && size&(size-1) == 0 {
		buffers[bits.Len(uint(size-1))].Put(&b)
	}
}
