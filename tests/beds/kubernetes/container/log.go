package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// keepLog writes what a stream brings in the format of the CRI: time, stream, F for a full line or P for a part, text.
func keepLog(log *os.File, lock *sync.Mutex, name string, stream io.Reader) {
	reader := bufio.NewReaderSize(stream, 16<<10)
	for {
		text, isPart, err := reader.ReadLine()
		if err != nil {
			return
		}
		tag := "F"
		if isPart {
			tag = "P"
		}
		lock.Lock()
		fmt.Fprintf(log, "%s %s %s %s\n", time.Now().Format(time.RFC3339Nano), name, tag, text)
		lock.Unlock()
	}
}
