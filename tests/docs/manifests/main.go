// Reads Kubernetes manifests from standard input with the API's own types, and prints every unknown, repeated or
// mistyped field. Kinds that these types do not contain, such as ServiceMonitor, are listed as "unchecked".
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	status := 0
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(err)
		}
		var named struct{ Kind string }
		if err := yaml.Unmarshal(document, &named); err != nil {
			panic(err)
		}
		_, _, err = decoder.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			fmt.Println("unchecked", named.Kind)
		} else if err != nil {
			fmt.Println("invalid", named.Kind, err)
			status = 1
		} else {
			fmt.Println("valid", named.Kind)
		}
	}
	os.Exit(status)
}
